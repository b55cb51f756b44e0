"""Evaluation: checkpoint -> features -> scores. It knows checkpoints and clips, not methods.

features = extract_features(load_eval_model(Path("last.pt")), open_clips("clips"), Path("rgb.features"))
evaluate_retrieval(features).recall[1]        # percent
evaluate_linear(features).scores.top1
"""
