"""Neural Bayesian Sequential Routing: belief, graph, walk, trace. Knows nothing of Ray, MLflow or a command line."""
