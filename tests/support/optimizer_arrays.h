// The arrays of an optimizer's tile at chosen misalignments, between canaries, with the tile that describes them.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "spillway/dtype.h"
#include "spillway/optimizer.h"

namespace spillway::test {

// Bytes that start `offset` bytes after a 64-byte boundary. What lies around them must stay as it is.
class OffsetBytes {
 public:
  OffsetBytes(std::int64_t bytes, std::int64_t offset)
      : size_(static_cast<std::size_t>(bytes)),
        start_(sizeof(Line) + static_cast<std::size_t>(offset)),
        lines_((start_ + size_) / sizeof(Line) + 2) {
    std::memset(lines_.data(), kCanary, lines_.size() * sizeof(Line));
    std::memset(data(), 0, size_);
  }

  std::uint8_t* data() { return all() + start_; }
  const std::uint8_t* data() const { return all() + start_; }
  std::size_t size() const { return size_; }

  template <class T>
  T get(std::int64_t i) const {
    T x;
    std::memcpy(&x, data() + i * static_cast<std::int64_t>(sizeof x), sizeof x);
    return x;
  }
  template <class T>
  void set(std::int64_t i, T x) {
    std::memcpy(data() + i * static_cast<std::int64_t>(sizeof x), &x, sizeof x);
  }

  // The bytes only: each keeps its own misalignment.
  void copy_from(const OffsetBytes& other) {
    if (size_ > 0) std::memcpy(data(), other.data(), size_);
  }
  bool same(const OffsetBytes& other) const { return size_ == other.size_ && std::memcmp(data(), other.data(), size_) == 0; }
  bool canaries_alive() const {
    const auto is_canary = [](std::uint8_t byte) { return byte == kCanary; };
    return std::all_of(all(), data(), is_canary) && std::all_of(data() + size_, all() + lines_.size() * sizeof(Line), is_canary);
  }

 private:
  static constexpr std::uint8_t kCanary = 0xa5;

  // Over-aligned, so that a copy has the misalignment of its original.
  struct alignas(64) Line {
    std::uint8_t bytes[64];
  };

  std::uint8_t* all() { return lines_.data()->bytes; }
  const std::uint8_t* all() const { return lines_.data()->bytes; }

  std::size_t size_;
  std::size_t start_;
  std::vector<Line> lines_;
};

inline float load_as_float(const OffsetBytes& array, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::f32: return array.get<float>(i);
    case DType::bf16: return to_float(array.get<bf16>(i));
    case DType::f16: return to_float(array.get<f16>(i));
  }
  return 0;
}

inline void store_float(OffsetBytes& array, DType dtype, std::int64_t i, float x) {
  switch (dtype) {
    case DType::f32: array.set(i, x); break;
    case DType::bf16: array.set(i, from_float<bf16>(x)); break;
    case DType::f16: array.set(i, from_float<f16>(x)); break;
  }
}

// What an update is of, and what it leaves beside the state.
struct OptimizerVariant {
  OptimizerKind kind = OptimizerKind::adam;
  MomentFormat moments = MomentFormat::f32;
  DType gradient = DType::f32;
  std::optional<DType> weight;
  bool split = false;  // master in two halves; the weight is bf16

  std::string name() const {
    std::string text(traits_of(kind).name);
    text.append("_").append(name_of(moments)).append("_").append(name_of(gradient)).append("_to_");
    return text.append(split ? "split" : weight ? name_of(*weight) : "none");
  }
  std::size_t num_moments() const { return traits_of(kind).moments.size(); }
  MomentLaw law(std::size_t moment) const { return traits_of(kind).moments[moment].law; }
};

inline constexpr std::array kAllKinds = {OptimizerKind::adam, OptimizerKind::adagrad, OptimizerKind::lion, OptimizerKind::sgd,
                                         OptimizerKind::sgd_momentum};

// Of one kind and format: every dtype of gradients with every form of weights.
inline std::vector<OptimizerVariant> variants_of(OptimizerKind kind, MomentFormat moments) {
  std::vector<OptimizerVariant> all;
  for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType weight : {DType::f32, DType::bf16, DType::f16}) all.push_back({kind, moments, gradient, weight, false});
    all.push_back({kind, moments, gradient, std::nullopt, false});
    all.push_back({kind, moments, gradient, DType::bf16, true});
  }
  return all;
}

// SGD has no moments to have a format.
inline bool exists(OptimizerKind kind, MomentFormat moments) {
  return !traits_of(kind).moments.empty() || moments == MomentFormat::f32;
}

// Each array is at its own misalignment, so that no two share one.
struct OptimizerArrays {
  OptimizerArrays(OptimizerVariant v, std::int64_t size, int misalignment)
      : variant(v),
        n(size),
        master(v.split ? 0 : 4 * n, 4 * misalignment),
        low(v.split ? 2 * n : 0, 2 * ((misalignment + 5) % 32)),
        gradient(size_of(v.gradient) * n, size_of(v.gradient) * ((misalignment + 9) % 16)),
        weight(v.weight ? size_of(*v.weight) * n : 0, v.weight ? size_of(*v.weight) * misalignment : 0) {
    for (std::size_t m = 0; m < v.num_moments(); ++m) {
      const std::int64_t width = v.moments == MomentFormat::f32 ? 4 : v.moments == MomentFormat::bf16 ? 2 : 1;
      moments.emplace_back(width * n, width * ((misalignment + 3 + 3 * static_cast<int>(m)) % 16));
      scales.emplace_back(v.moments == MomentFormat::block8 ? (n + kMomentBlock - 1) / kMomentBlock : 0, (misalignment + static_cast<int>(m)) % 16);
    }
  }

  // Master near 0.05, moments as after some steps. The gradient is left to fill_gradient().
  void fill_state(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n; ++i) set_master(i, normal(random) * 0.05f);
    for (std::size_t m = 0; m < moments.size(); ++m) {
      std::vector<float> values(static_cast<std::size_t>(n));
      for (float& x : values) {
        x = normal(random) * 1e-2f;
        if (variant.law(m) == MomentLaw::fourth_power) x *= x;
      }
      set_moments(m, values);
    }
  }

  void fill_gradient(std::uint32_t seed, float scale) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n; ++i) set_gradient(i, normal(random) * scale);
  }

  float master_at(std::int64_t i) const {
    if (!variant.split) return master.get<float>(i);
    const std::uint32_t upper = std::uint32_t{weight.get<std::uint16_t>(i)} << 16;
    return std::bit_cast<float>(upper + static_cast<std::uint32_t>(std::int32_t{low.get<std::int16_t>(i)}));
  }
  void set_master(std::int64_t i, float x) {
    if (!variant.split) return master.set(i, x);
    const auto bits = std::bit_cast<std::uint32_t>(x);
    low.set(i, static_cast<std::uint16_t>(bits));
    weight.set(i, static_cast<std::uint16_t>((bits + 0x8000u) >> 16));
  }

  std::vector<float> moments_at(std::size_t m) const {
    std::vector<float> values(static_cast<std::size_t>(n));
    decode_moments(variant.moments, variant.law(m), moments[m].data(), scales[m].data(), values);
    return values;
  }
  void set_moments(std::size_t m, const std::vector<float>& values) {
    encode_moments(variant.moments, variant.law(m), values, moments[m].data(), scales[m].data());
  }

  float gradient_at(std::int64_t i) const { return load_as_float(gradient, variant.gradient, i); }
  void set_gradient(std::int64_t i, float x) { store_float(gradient, variant.gradient, i, x); }
  float weight_at(std::int64_t i) const { return load_as_float(weight, *variant.weight, i); }

  OptimizerTile tile() {
    OptimizerTile t;
    if (variant.split) {
      t.master_low = reinterpret_cast<std::uint16_t*>(low.data());
    } else {
      t.master = reinterpret_cast<float*>(master.data());
    }
    for (std::size_t m = 0; m < moments.size(); ++m) {
      t.moments[m] = moments[m].data();
      if (variant.moments == MomentFormat::block8) t.scales[m] = scales[m].data();
    }
    t.moment_format = variant.moments;
    t.gradient = gradient.data();
    t.gradient_dtype = variant.gradient;
    t.weight = variant.weight ? weight.data() : nullptr;
    t.weight_dtype = variant.weight.value_or(DType::bf16);
    t.n = n;
    return t;
  }

  void copy_from(const OptimizerArrays& other) {
    visit(*this, other, [](OffsetBytes& to, const OffsetBytes& from) {
      to.copy_from(from);
      return true;
    });
  }
  bool same_elements(const OptimizerArrays& other) const {
    return visit(*this, other, [](const OffsetBytes& one, const OffsetBytes& another) { return one.same(another); });
  }
  bool canaries_alive() const {
    return visit(*this, *this, [](const OffsetBytes& array, const OffsetBytes&) { return array.canaries_alive(); });
  }

  OptimizerVariant variant;
  std::int64_t n;
  OffsetBytes master, low, gradient, weight;
  std::vector<OffsetBytes> moments, scales;

 private:
  // Whether f holds of every pair of arrays.
  template <class A, class B, class F>
  static bool visit(A& a, B& b, F f) {
    bool holds = f(a.master, b.master) && f(a.low, b.low) && f(a.gradient, b.gradient) && f(a.weight, b.weight);
    for (std::size_t m = 0; m < a.moments.size(); ++m) holds = holds && f(a.moments[m], b.moments[m]) && f(a.scales[m], b.scales[m]);
    return holds;
  }
};

// Hyper-parameters of which every term of the kind counts.
inline OptimizerParams lively_params(OptimizerKind kind, std::int64_t step) {
  OptimizerParams p;
  p.kind = kind;
  p.learning_rate = 1e-2;
  p.weight_decay = 0.1;
  p.momentum = 0.9;
  p.dampening = 0.1;
  p.learning_rate_decay = 0.01;
  p.step = step;
  p.gradient_scale = 0.37f;
  p.seed = 77;
  return p;
}

// Gradients of all sizes, among them zeros of both signs, subnormals, the largest finite and, if wanted, infinities.
inline void fill_wild_gradient(OptimizerArrays& arrays, std::uint32_t seed, bool infinities) {
  static constexpr float kSpecial[] = {0.0f,    -0.0f,    1e-45f, -3e-42f,        1.1754944e-38f, 6e-8f,
                                       -6.1e-5f, 65504.0f, 3.4e38f, -3.4028235e38f, HUGE_VALF,      -HUGE_VALF};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const std::size_t specials = infinities ? std::size(kSpecial) : std::size(kSpecial) - 2;
  for (std::int64_t i = 0; i < arrays.n; ++i) {
    const float ordinary = std::ldexp(normal(random), static_cast<int>(random() % 40) - 30);
    arrays.set_gradient(i, random() % 4 == 0 ? kSpecial[random() % specials] : ordinary);
    if (!infinities && std::isinf(arrays.gradient_at(i))) arrays.set_gradient(i, 1.0f);
  }
}

}  // namespace spillway::test
