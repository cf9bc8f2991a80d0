// simt_mbarrier: barriers in a block's shared memory at which threads arrive without waiting, on the emulator. What one
// counts: core/tma.h. A barrier is known by its address; what stands there says nothing. Defined in core/simt.cpp.
//
// A copy that was asked for arrives as late as it may: when no thread can go on, and the barrier that counts its bytes
// waits for nothing else. When nobody can go on then either, that is a deadlock.
#pragma once
#include "core/simt.h"
#include "core/tma.h"

namespace simt {

void mbarrier_init(const void* barrier, unsigned arrivals, Place at);
void mbarrier_arrive(const void* barrier, unsigned announced_bytes, Place at);
void mbarrier_wait(const void* barrier, unsigned parity, Place at);
// Later: a box of this matrix, whose bytes count there.
void mbarrier_copy(const void* barrier, unsigned char* to, const gated::TmaMatrix& from, int x, int y, Place at);

// Of a cluster's blocks: which one this is; all threads of all of them meet; from shared memory of this block to the
// same place of another's.
unsigned cluster_rank();
void cluster_barrier(Place at);
ptrdiff_t way_to_rank(unsigned rank);

}  // namespace simt
