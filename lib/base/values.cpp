#include "base/values.h"

#include <cassert>
#include <cstring>

namespace spillway {

namespace {

// Calls f with a value of the C++ type that stores `dtype`.
template <class F>
void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::f32: f(0.0f); break;
    case DType::bf16: f(bf16{}); break;
    case DType::f16: f(f16{}); break;
  }
}

}  // namespace

void widen(DType dtype, std::span<const std::byte> bytes, std::span<float> out) {
  assert(static_cast<std::int64_t>(bytes.size()) >= static_cast<std::int64_t>(out.size()) * size_of(dtype));
  with_type(dtype, [&]<class T>(T value) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      out[i] = to_float(value);
    }
  });
}

void narrow(DType dtype, std::span<const float> values, std::span<std::byte> out) {
  assert(static_cast<std::int64_t>(out.size()) >= static_cast<std::int64_t>(values.size()) * size_of(dtype));
  with_type(dtype, [&]<class T>(T value) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      value = from_float<T>(values[i]);
      std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
}

void round_values(DType dtype, std::span<float> values) {
  with_type(dtype, [&]<class T>(T) {
    for (float& value : values) value = round_to<T>(value);
  });
}

}  // namespace spillway
