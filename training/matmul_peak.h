// matmul_peak: the best FLOP/s of the project's own matrix product on a device, the measure of every step's speed.
#pragma once
#include "core/storage.h"

namespace gated {

class Context;

// Of matrices that are stored so. Measured in a fraction of a second. 0 on the emulator, whose speed says nothing about a machine.
double measured_matmul_peak(Storage storage, Context& ctx);

}  // namespace gated
