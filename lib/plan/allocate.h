// Pass "allocate": an offset in its tier's arena for every buffer.
#pragma once

#include "spillway/plan.h"

namespace spillway {

// Persistent buffers come first and are shared by all programs; above them, buffers whose lives in a
// program overlap in plan order get disjoint ranges (largest first, lowest offset that is free). Sets
// offsets and TierUse::peak / by_owner.
void allocate(Plan& plan);

}  // namespace spillway
