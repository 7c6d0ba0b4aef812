// The arrays of a tile at chosen misalignments, between canaries, with the tile that describes them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "spillway/cpu_adam.h"
#include "spillway/dtype.h"

namespace spillway {

// n elements of a dtype that start `offset` elements after a 64-byte boundary. What lies around them must
// stay as it is.
class GuardedArray {
 public:
  GuardedArray(DType dtype, std::int64_t n, int offset)
      : dtype_(dtype),
        n_(n),
        start_(sizeof(Line) + static_cast<std::size_t>(offset * size_of(dtype))),
        lines_((start_ + size_bytes()) / sizeof(Line) + 2) {
    std::memset(lines_.data(), kCanary, lines_.size() * sizeof(Line));
  }

  void* data() { return all() + start_; }
  float* f32() { return static_cast<float*>(data()); }
  const unsigned char* bytes() const { return all() + start_; }
  std::size_t size_bytes() const { return static_cast<std::size_t>(n_ * size_of(dtype_)); }

  float value(std::int64_t i) const {
    const unsigned char* at = bytes() + i * size_of(dtype_);
    switch (dtype_) {
      case DType::f32: return read<float>(at);
      case DType::bf16: return to_float(read<bf16>(at));
      case DType::f16: return to_float(read<f16>(at));
    }
    return 0;
  }

  void set(std::int64_t i, float x) {
    unsigned char* at = all() + start_ + i * size_of(dtype_);
    switch (dtype_) {
      case DType::f32: std::memcpy(at, &x, 4); break;
      case DType::bf16: write(at, from_float<bf16>(x)); break;
      case DType::f16: write(at, from_float<f16>(x)); break;
    }
  }

  bool same_elements(const GuardedArray& other) const {
    return size_bytes() == other.size_bytes() && std::memcmp(bytes(), other.bytes(), size_bytes()) == 0;
  }

  bool canaries_alive() const {
    const auto is_canary = [](unsigned char byte) { return byte == kCanary; };
    return std::all_of(all(), bytes(), is_canary) &&
           std::all_of(bytes() + size_bytes(), all() + lines_.size() * sizeof(Line), is_canary);
  }

 private:
  static constexpr unsigned char kCanary = 0xa5;

  // Over-aligned, so that a copy has the misalignment of its original.
  struct alignas(64) Line {
    unsigned char bytes[64];
  };

  unsigned char* all() { return lines_.data()->bytes; }
  const unsigned char* all() const { return lines_.data()->bytes; }

  template <class T>
  static T read(const unsigned char* at) {
    T x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
  template <class T>
  static void write(unsigned char* at, T x) {
    std::memcpy(at, &x, sizeof x);
  }

  DType dtype_;
  std::int64_t n_;
  std::size_t start_;
  std::vector<Line> lines_;
};

// What is stored beside the state: the dtype of the gradient, and of the weight unless there is none.
struct AdamTypes {
  DType gradient;
  DType weight;
  bool has_weight;

  std::string name() const {
    return std::string(name_of(gradient)) + "_to_" + std::string(has_weight ? name_of(weight) : "none");
  }
};

inline std::vector<AdamTypes> all_adam_types() {
  std::vector<AdamTypes> all;
  for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType weight : {DType::f32, DType::bf16, DType::f16}) all.push_back({gradient, weight, true});
    all.push_back({gradient, DType::f32, false});
  }
  return all;
}

// The five arrays, each at its own misalignment so that no two share one.
struct AdamArrays {
  AdamArrays(AdamTypes t, std::int64_t size, int misalignment)
      : types(t),
        n(size),
        master(DType::f32, n, misalignment),
        exp_avg(DType::f32, n, (misalignment + 3) % 16),
        exp_avg_sq(DType::f32, n, (misalignment + 6) % 16),
        gradient(t.gradient, n, (misalignment + 9) % 16),
        weight(t.weight, n, misalignment) {}

  // Master near 0.05, moments as after some steps. `gradient` is left to fill_gradient().
  void fill_state(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n; ++i) {
      const float second = normal(random) * 1e-2f;
      master.set(i, normal(random) * 0.05f);
      exp_avg.set(i, normal(random) * 1e-3f);
      exp_avg_sq.set(i, second * second);
    }
  }

  void fill_gradient(std::uint32_t seed, float scale) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n; ++i) gradient.set(i, normal(random) * scale);
  }

  // Elements first to last - 1.
  AdamTile tile(std::int64_t first, std::int64_t last) {
    const auto at = [first](GuardedArray& array, DType dtype) -> void* {
      return static_cast<char*>(array.data()) + first * size_of(dtype);
    };
    return AdamTile{.master = master.f32() + first,
                    .exp_avg = exp_avg.f32() + first,
                    .exp_avg_sq = exp_avg_sq.f32() + first,
                    .gradient = at(gradient, types.gradient),
                    .gradient_dtype = types.gradient,
                    .weight = types.has_weight ? at(weight, types.weight) : nullptr,
                    .weight_dtype = types.weight,
                    .n = last - first};
  }
  AdamTile tile() { return tile(0, n); }

  bool same_elements(const AdamArrays& other) const {
    return master.same_elements(other.master) && exp_avg.same_elements(other.exp_avg) &&
           exp_avg_sq.same_elements(other.exp_avg_sq) && weight.same_elements(other.weight);
  }
  bool canaries_alive() const {
    return master.canaries_alive() && exp_avg.canaries_alive() && exp_avg_sq.canaries_alive() &&
           gradient.canaries_alive() && weight.canaries_alive();
  }

  AdamTypes types;
  std::int64_t n;
  GuardedArray master, exp_avg, exp_avg_sq, gradient, weight;
};

}  // namespace spillway
