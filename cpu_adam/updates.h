// The entry points of the kernels. Included by the instruction-set files, so it holds declarations only.
#pragma once

#include <cstdint>

namespace spillway {

struct AdamTile;
struct AdamScalars;

namespace cpu_adam {

// The contract of InstructionSet::update.
std::int64_t update_scalar(const AdamTile& tile, const AdamScalars& scalars);
std::int64_t update_avx2(const AdamTile& tile, const AdamScalars& scalars);
std::int64_t update_avx512(const AdamTile& tile, const AdamScalars& scalars);

}  // namespace cpu_adam
}  // namespace spillway
