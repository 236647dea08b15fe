"""What candidates import as ``kernelwright``. This file only says what it offers: an evaluation
brings the real one.

``lib = native(language="cuda", source=...)`` compiles a source and returns its functions declared
``extern "C"`` as methods of ``lib``. Tensors become pointers: a tensor has to be contiguous, on the
right device and of the type that the parameter names, else the call raises TypeError or ValueError
before anything is touched. Numbers become what the parameter's type says.

A parameter of type ``cudaStream_t`` is not given in the call: it is torch's current stream. A
source whose only functions with C linkage are kernels (``extern "C" __global__``) is launched from
Python: ``lib.kernel[grid, block](x, y, n)``, with so much dynamic shared memory
``lib.kernel[grid, block, bytes](x, y, n)``.
"""


def native(source, language="cpp", flags=()):
    """Builds C++ or CUDA; ``flags`` are added to the compiler's."""
