"""Attentive probe: a learned query attends to the places and times of a frozen encoder's feature map.

Averaging the map, as a linear probe does, hides what is seen in a few places only. The head is that of V-JEPA (Bardes
et al., "Revisiting Feature Prediction for Learning Visual Representations from Video", 2024): one query, one block of
cross-attention with an MLP, a linear classifier.
Shapes: B batch, D feature, N = t h w tokens.
"""

import torch
from torch import Tensor, nn

HEAD_SIZE = 64  # features per attention head, where D allows it
MLP_RATIO = 4


class AttentiveClassifier(nn.Module):
    """Classify feature maps: (B, D, t, h, w) -> logits (B, num_classes)."""

    def __init__(self, num_features: int, num_classes: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, 1, num_features))
        nn.init.trunc_normal_(self.query, std=0.02)
        self.token_norm = nn.LayerNorm(num_features)
        self.attention = nn.MultiheadAttention(num_features, num_heads(num_features), batch_first=True)
        self.norm = nn.LayerNorm(num_features)
        hidden = MLP_RATIO * num_features
        self.mlp = nn.Sequential(nn.Linear(num_features, hidden), nn.GELU(), nn.Linear(hidden, num_features))
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(num_features, num_classes)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return logits (B, num_classes) for feature maps (B, D, t, h, w)."""
        tokens = self.token_norm(features.flatten(2).transpose(1, 2))  # (B, N, D)
        query = self.query.expand(len(tokens), -1, -1)
        pooled = query + self.attention(query, tokens, tokens, need_weights=False)[0]
        pooled = pooled + self.mlp(self.norm(pooled))
        logits: Tensor = self.linear(self.dropout(pooled[:, 0]))
        return logits


def num_heads(num_features: int) -> int:
    """Return the number of attention heads: of 64 features each, or the next smaller number that divides them."""
    most = max(1, num_features // HEAD_SIZE)
    return next(count for count in range(most, 0, -1) if num_features % count == 0)
