"""llama.cpp's own server, from the wheel of xllamacpp, with one model on one thread.

    python llama_server.py MODEL PORT CONTEXT SECONDS [TEMPLATE]

It ends after SECONDS, and when its standard input ends, which is when whoever started it is gone.
TEMPLATE is a chat template in place of the model's own.
"""

import os
import signal
import sys
import threading

import xllamacpp


def end_with_input() -> None:
    while os.read(0, 1024):
        pass
    os._exit(0)


model, port, context, seconds = sys.argv[1:5]
signal.alarm(int(seconds))
threading.Thread(target=end_with_input, daemon=True).start()

params = xllamacpp.CommonParams()
params.model.path = model
params.model_alias = {"smollm2"}
params.port = int(port)
params.n_ctx = int(context)
params.n_parallel = 1
params.n_threads_http = 2
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = False
params.ui = False
if len(sys.argv) > 5:
    params.chat_template = sys.argv[5]
server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
signal.pause()
