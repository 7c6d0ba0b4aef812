// Moments as f32, and back, by the text of the kernels for one element at a time.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/default_arithmetic.h"
#include "moment_codes.h"
#include "scalar.h"
#include "spillway/optimizer.h"

namespace spillway {
namespace {

using cpu_adam::BlockScale;
using cpu_adam::Scalar;

template <MomentLaw law>
void decode_codes(const std::uint8_t* codes, const std::uint8_t* scales, std::span<float> out) {
  const auto n = static_cast<std::int64_t>(out.size());
  for (std::int64_t i = 0; i < n; i += kMomentBlock) {
    cpu_adam::decode_block<Scalar, law>(codes + i, scales[i / kMomentBlock], out.data() + i, std::min(kMomentBlock, n - i));
  }
}

template <MomentLaw law>
void encode_codes(std::span<const float> in, std::uint8_t* codes, std::uint8_t* scales) {
  const auto n = static_cast<std::int64_t>(in.size());
  for (std::int64_t i = 0; i < n; i += kMomentBlock) {
    std::array<float, kMomentBlock> block;
    const std::int64_t length = std::min(kMomentBlock, n - i);
    std::memcpy(block.data(), in.data() + i, static_cast<std::size_t>(length) * sizeof(float));
    const BlockScale scale = cpu_adam::scale_block<Scalar, law>(block.data(), length);
    scales[i / kMomentBlock] = scale.byte;
    for (std::int64_t j = 0; j < length; ++j) {
      const float x = block[static_cast<std::size_t>(j)];
      Scalar::store_bytes(codes + i + j, cpu_adam::encode<Scalar, law>(x, 0.5f, scale.inverse, scale.largest_code));
    }
  }
}

}  // namespace

void decode_moments(MomentFormat format, MomentLaw law, const void* values, const std::uint8_t* scales, std::span<float> out) {
  const DefaultArithmetic scope;
  const auto* const halves = static_cast<const std::uint16_t*>(values);
  const auto* const codes = static_cast<const std::uint8_t*>(values);
  switch (format) {
    case MomentFormat::f32:
      if (!out.empty()) std::memcpy(out.data(), values, out.size_bytes());
      break;
    case MomentFormat::bf16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_float(bf16{halves[i]});
      break;
    case MomentFormat::block8:
      law == MomentLaw::square ? decode_codes<MomentLaw::square>(codes, scales, out)
                               : decode_codes<MomentLaw::fourth_power>(codes, scales, out);
      break;
  }
}

void encode_moments(MomentFormat format, MomentLaw law, std::span<const float> in, void* values, std::uint8_t* scales) {
  const DefaultArithmetic scope;
  auto* const halves = static_cast<std::uint16_t*>(values);
  auto* const codes = static_cast<std::uint8_t*>(values);
  switch (format) {
    case MomentFormat::f32:
      if (!in.empty()) std::memcpy(values, in.data(), in.size_bytes());
      break;
    case MomentFormat::bf16:
      for (std::size_t i = 0; i < in.size(); ++i) halves[i] = from_float<bf16>(in[i]).bits;
      break;
    case MomentFormat::block8:
      law == MomentLaw::square ? encode_codes<MomentLaw::square>(in, codes, scales)
                               : encode_codes<MomentLaw::fourth_power>(in, codes, scales);
      break;
  }
}

}  // namespace spillway
