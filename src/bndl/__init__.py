from bndl.layer import DecisionLayer
