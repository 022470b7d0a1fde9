raise ImportError("missing a library")
