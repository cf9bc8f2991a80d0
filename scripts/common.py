"""What many scripts share: where ./train is, and how a script ends that cannot go on."""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TRAIN = os.path.join(ROOT, "train")


def refuse(message):
    sys.exit("error: " + message)


def require_train():
    if not os.access(TRAIN, os.X_OK):
        refuse(f"{TRAIN}: not found: run make first")
