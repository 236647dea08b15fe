"""The composer without PyTorch: what it composes is made of the index. All else is the real one."""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(sys.argv[-1]))
import crawling
import serve

ACTS = ["relu", "gelu", "silu", "tanh", "sigmoid", "elu", "mish", "selu", "softplus", "hardswish"]
ROWS = ["softmax", "log_softmax", "normalize", "layer_norm", "softmin", "logsigmoid", "celu"]


def hang():
    """Tells the test, and does not answer."""
    with open(os.environ["HUNG"], "wb") as told:
        told.write(b"!")
    time.sleep(3600)


def near(self, request):
    if "# hangs" in request["source"]:
        hang()
    return honest(self, request)


def probe(entry):
    """Waits at some operators to be killed, the first time that it is there."""
    with open(os.environ["PROBED"], "a+") as tried:
        tried.write(entry["path"] + "\n")
        tried.seek(0)
        first = tried.read().count(entry["path"] + "\n") == 1
    if first and entry["path"] in os.environ["WAIT_AT"]:
        hang()
    return entry | {"kind": entry["path"].lower()}


def catalogue(self, request):
    """A crawl of operators that are found out by the real programs."""
    entries = [{"path": f"torch.nn.Op{i}."} for i in range(12)]
    return {
        "catalogue": {
            "torch": "2.11",
            "tried": len(entries),
            "operators": crawling.outcomes(entries, probe, serve.told, request["journal"]),
        }
    }


def rates(self, request):
    """Other ones each time that it measures."""
    with open(os.environ["PROBED"], "a+") as tried:
        tried.write("rates\n")
        tried.seek(0)
        return {"rates": {"tanh": float(tried.read().count("rates\n"))}}


def compose(self, request):
    i = request["index"]
    if request["module"]:
        name = ["erf", "atan", "asinh", "sinh", "tan", "log1p", "expm1", "cosh"][i % 8]
        value = f"x.{name}().{ACTS[i % 10]}()"
        source = f"class Model:\n    def forward(self, x):\n        return {value}\n"
        return {
            "source": source + f"\n\n# says  3.0 {i}\n",
            "operators": [f"transformers.{name}"],
        }
    if i % 13 == 5:
        return {"reason": "no operator fits"}
    if os.environ.get("DIE_AT") == str(i):
        os._exit(1)
    if os.environ.get("HANG_AT") == str(i):
        hang()
    act, row = ACTS[i // 2 % len(ACTS)], ROWS[i // 3 % len(ROWS)]
    if request["one_of"]:
        act = request["one_of"][0]
    # The hardware of the test reads what it is to say off the text.
    says = {3: "constant", 7: "slow", 9: "wrong", 11: "uncompiled"}.get(i % 17, "")
    room = 1.0 if i % 2 else 3.0
    source = (
        "import torch.nn.functional as F\n\n\nclass Model:\n    def forward(self, x):\n"
        f"        x = F.{act}(x)\n        return F.{row}(x)\n\n\n# says {says} {room} {i}\n"
    )
    return {
        "source": source,
        "operators": [f"F.{act}", f"F.{row}"],
        "kinds": [act, row],
        "primitives": [act, row],
    }


serve.Service.libraries = lambda self, request: {"transformers": "5.24.0"}
honest = serve.Service.near
serve.Service.near = near
serve.Service.catalogue = catalogue
serve.Service.borrowed = lambda self, request: {
    "catalogue": {
        "transformers": "5.24.0",
        "modules": [{"path": "transformers.llama.LlamaMLP"}],
        "modules_tried": 3,
        "modules_left_out": {"is too long for one task": 2},
    }
}
serve.Service.rates = rates
serve.Service.use = lambda self, request: {}
serve.Service.compose = compose
serve.main()
