def run_vectors(case):
    return ["later"]
