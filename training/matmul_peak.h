// matmul_peak: the best FLOP/s that a matrix product reaches on a device, the measure of every step's speed. On a GPU
// that of the faster of the project's kernels and cuBLASLt, whichever multiplies in the run: beside a slow product of
// our own every step would look fast.
#pragma once
#include "core/storage.h"

namespace gated {

class Context;

// Of matrices that are stored so. Each is measured for 0.2 s, or three products. 0 on the emulator, whose speed says
// nothing about a machine.
double measured_matmul_peak(Storage storage, Context& ctx);

}  // namespace gated
