// Asks cuBLASLt, through the engine's own products, which kinds of product it has and whether they are right: every
// combination of types, transposition, epilogue and added matrix that gpu/linear.cpp and gpu/loss_head.cpp ask for, at every
// alignment that an address inside a flat buffer can have. Prints one JSON object.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "gpu/cuda_memory.h"
#include "gpu/gemm.h"
#include "gpu/program.h"
#include "gpu/scratch_sizes.h"
#include "spillway/error.h"

namespace spillway::bench {
namespace {

using cuda::Epilogue;
using cuda::Product;

enum class Added { none, apart, result };

// One kind of product, as the engine asks for it.
struct Kind {
  bool a_transposed, b_transposed;
  bool stored_f32;
  Epilogue epilogue;
  std::vector<Added> added;
};

const std::vector<Kind> kKinds = {
    {false, true, false, Epilogue::none, {Added::none, Added::apart, Added::result}},  // y = x W^T (+ residual)
    {false, true, false, Epilogue::bias, {Added::none, Added::apart, Added::result}},
    {false, true, false, Epilogue::gelu, {Added::none}},
    {false, true, false, Epilogue::bias_gelu, {Added::none}},
    {false, true, true, Epilogue::none, {Added::none}},                                // logits, and sums before an epilogue of our own
    {false, false, false, Epilogue::none, {Added::none}},                              // dx = dy W
    {false, false, false, Epilogue::dgelu, {Added::none}},
    {true, false, true, Epilogue::none, {Added::none, Added::result}},                 // dW (+)= dy^T x
};

constexpr int kAlignments[] = {16, 8, 4, 2};
constexpr std::size_t kArrayBytes = 1 << 16;

const char* text_of(Epilogue epilogue) {
  constexpr const char* kNames[] = {"none", "bias", "gelu", "bias_gelu", "dgelu"};
  return kNames[static_cast<std::size_t>(epilogue)];
}
const char* text_of(Added added) {
  constexpr const char* kNames[] = {"none", "apart", "result"};
  return kNames[static_cast<std::size_t>(added)];
}

double gelu(double x) { return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_derivative(double x) {
  const double inner = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(inner);
  return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

double roundoff(DType dtype) { return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24; }

// An array in both memories. Its address is a multiple of `alignment` and of nothing larger.
class Array {
 public:
  Array(DType dtype, int alignment) : dtype_(dtype), offset_(static_cast<std::size_t>(std::max<std::int64_t>(alignment, size_of(dtype)))) {}

  std::byte* on_device() const { return device_.data() + offset_; }
  double operator[](std::int64_t i) const {
    const std::byte* at = host_.data() + offset_ + i * size_of(dtype_);
    if (dtype_ == DType::f32) return *reinterpret_cast<const float*>(at);
    if (dtype_ == DType::bf16) return to_float(*reinterpret_cast<const bf16*>(at));
    return to_float(*reinterpret_cast<const f16*>(at));
  }
  void set(std::int64_t i, float value) {
    std::byte* at = host_.data() + offset_ + i * size_of(dtype_);
    if (dtype_ == DType::f32) *reinterpret_cast<float*>(at) = value;
    if (dtype_ == DType::bf16) *reinterpret_cast<bf16*>(at) = from_float<bf16>(value);
    if (dtype_ == DType::f16) *reinterpret_cast<f16*>(at) = from_float<f16>(value);
  }
  void fill(std::mt19937& random) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(kArrayBytes) / size_of(dtype_) - 16; ++i)
      set(i, static_cast<float>(static_cast<double>(random()) / 0x1p31 - 1.0));
  }
  void upload(const CudaStream& stream) const { stream.copy(device_.data(), host_.data(), host_.size()); }
  void download(const CudaStream& stream) const { stream.copy(host_.data(), device_.data(), host_.size()); }

 private:
  DType dtype_;
  std::size_t offset_;
  PinnedMemory host_{kArrayBytes};
  DeviceMemory device_{kArrayBytes};
};

struct Answer {
  bool accepted = false;
  std::string status;
  double error = 0.0;    // largest |result - reference|
  double allowed = 0.0;  // where it is largest beside what is allowed
};

class Question {
 public:
  Question(cuda::Gemm& gemm, const DeviceMemory& workspace, const Kind& kind, DType operands, Added added, int alignment)
      : gemm_(gemm), workspace_(workspace), kind_(kind), added_kind_(added), stored_(kind.stored_f32 ? DType::f32 : operands), operands_(operands),
        a_(operands, alignment), b_(operands, alignment), result_(stored_, alignment), added_(stored_, alignment), bias_(stored_, alignment),
        aux_(stored_, alignment) {
    // Odd multiples of what makes a row a multiple of the alignment and of nothing larger.
    const std::int64_t unit = std::max<std::int64_t>(1, alignment / size_of(operands));
    const auto near = [&](std::int64_t size) { return unit * (size / (2 * unit) * 2 + 1); };
    m_ = near(48), n_ = near(40), k_ = near(64);
    std::mt19937 random(7);
    for (Array* array : arrays()) array->fill(random);
    for (std::int64_t i = 0; i < m_ * n_; ++i) before_.push_back(result_[i]);
    for (std::int64_t i = 0; i < m_ * n_; ++i) aux_before_.push_back(aux_[i]);
  }

  Answer ask() {
    Answer answer;
    for (const Array* array : arrays()) array->upload(stream_);
    try {
      answer.accepted = gemm_.try_multiply(stream_.get(), product());
      for (const Array* array : {&result_, &aux_}) array->download(stream_);
      stream_.synchronize();
    } catch (const Error& error) {
      return {.accepted = false, .status = error.what()};
    }
    if (answer.accepted) compare(answer);
    return answer;
  }

 private:
  std::vector<Array*> arrays() { return {&a_, &b_, &result_, &added_, &bias_, &aux_}; }

  bool has_bias() const { return kind_.epilogue == Epilogue::bias || kind_.epilogue == Epilogue::bias_gelu; }
  bool has_gelu() const { return kind_.epilogue == Epilogue::gelu || kind_.epilogue == Epilogue::bias_gelu; }

  Product product() {
    const bool has_aux = has_gelu() || kind_.epilogue == Epilogue::dgelu;
    return {.m = m_,
            .n = n_,
            .k = k_,
            .operands = operands_,
            .stored = stored_,
            .a = {a_.on_device(), kind_.a_transposed ? m_ : k_, kind_.a_transposed},
            .b = {b_.on_device(), kind_.b_transposed ? k_ : n_, kind_.b_transposed},
            .result = result_.on_device(),
            .ld = n_,
            .added = added_kind_ == Added::none ? nullptr : added_kind_ == Added::apart ? added_.on_device() : result_.on_device(),
            .epilogue = kind_.epilogue,
            .bias = has_bias() ? bias_.on_device() : nullptr,
            .aux = has_aux ? aux_.on_device() : nullptr,
            .workspace = {workspace_.data(), workspace_.size()}};
  }

  // Element (i, j) before GELU, and the sum of its terms' magnitudes.
  std::pair<double, double> sums(std::int64_t i, std::int64_t j) const {
    double sum = 0.0, magnitude = 0.0;
    for (std::int64_t p = 0; p < k_; ++p) {
      const double term = a_[kind_.a_transposed ? p * m_ + i : i * k_ + p] * b_[kind_.b_transposed ? j * k_ + p : p * n_ + j];
      sum += term, magnitude += std::fabs(term);
    }
    const std::int64_t at = i * n_ + j;
    if (added_kind_ == Added::apart) sum += added_[at];
    if (added_kind_ == Added::result) sum += before_[static_cast<std::size_t>(at)];
    if (has_bias()) sum += bias_[j];
    return {sum, magnitude};
  }

  // Rounding of the result, of what GELU may be given already rounded, and of f32 sums in any order.
  void compare(Answer& answer) const {
    const double u = roundoff(stored_);
    const auto note = [&](double got, double expected, double magnitude) {
      const double error = std::fabs(got - expected), allowed = 2.0 * u * (1.0 + std::fabs(expected)) + 2.0 * static_cast<double>(k_) * 0x1p-24 * magnitude;
      if (!(error / allowed <= answer.error / std::max(answer.allowed, 1e-300))) answer.error = error, answer.allowed = allowed;
    };
    for (std::int64_t i = 0; i < m_; ++i)
      for (std::int64_t j = 0; j < n_; ++j) {
        const auto [sum, magnitude] = sums(i, j);
        const std::int64_t at = i * n_ + j;
        if (has_gelu()) note(aux_[at], sum, magnitude);
        const double derivative = kind_.epilogue == Epilogue::dgelu ? gelu_derivative(aux_before_[static_cast<std::size_t>(at)]) : 1.0;
        note(result_[at], has_gelu() ? gelu(sum) : sum * derivative, 1.2 * magnitude);
      }
  }

  cuda::Gemm& gemm_;
  const DeviceMemory& workspace_;
  const Kind& kind_;
  Added added_kind_;
  DType stored_, operands_;
  std::int64_t m_ = 0, n_ = 0, k_ = 0;
  Array a_, b_, result_, added_, bias_, aux_;
  std::vector<double> before_, aux_before_;
  CudaStream stream_;
};

// cuBLASLt's view is column-major: its first operand is our b.
std::string operations(const Kind& kind) { return {kind.b_transposed ? 'T' : 'N', kind.a_transposed ? 'T' : 'N'}; }

void ask_all() {
  cuda::Gemm gemm;
  const DeviceMemory workspace(static_cast<std::size_t>(cuda::kGemmWorkspaceBytes));
  std::string rows, wrong;
  for (const DType operands : {DType::f32, DType::bf16, DType::f16})
    for (const Kind& kind : kKinds)
      for (const Added added : kind.added)
        for (const int alignment : kAlignments) {
          if (alignment < size_of(operands)) continue;
          const Answer answer = Question(gemm, workspace, kind, operands, added, alignment).ask();
          const std::string row = fmt::format(
              R"("operands": "{}", "result": "{}", "ops": "{}", "epilogue": "{}", "added": "{}", "alignment": {}, "accepted": {}, "error": {:.3g}, "allowed": {:.3g})",
              name_of(operands), name_of(kind.stored_f32 ? DType::f32 : operands), operations(kind), text_of(kind.epilogue), text_of(added), alignment,
              answer.accepted, answer.error, answer.allowed);
          rows += fmt::format("{}{{{}, \"status\": {:?}}}", rows.empty() ? "" : ", ", row, answer.status);
          if (answer.accepted && !(answer.error <= answer.allowed)) wrong += "\n" + row;
        }
  fmt::print("{{\"products\": [{}]}}\n", rows);
  if (!wrong.empty()) throw DeviceError("[gemm] these products are accepted and wrong:" + wrong);
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  return spillway::bench::run_program(argc, argv, [](bool) { spillway::bench::ask_all(); });
}
