"""Transfer: accuracy of frozen image features on ten other data sets. Appendix A.3 of the paper.

    features -> logistic regression by LBFGS, hyper-parameters searched on val -> retrained on train + val -> test

train, val = LabeledFeatures(...), LabeledFeatures(...)
best = search(train, val, metric="top1", num_trials=200)[0].hyperparameters
"""
