// Causal attention by its definition, term by term in f64, and how far a kernel may be off that multiplies 16-bit
// probabilities.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "spillway/ops.h"
#include "support/kernel_check.h"

namespace spillway::test {

// How the operands of a kernel's products are rounded: by at most `relative` of their size plus `absolute`. f32 arithmetic
// is not counted.
struct OperandRounding {
  double relative = 0.0, absolute = 0.0;

  double of(double value) const { return relative * std::fabs(value) + absolute; }
};

// Where products take operands of T.
template <class T>
constexpr OperandRounding kRoundingTo =
    std::is_same_v<T, float> ? OperandRounding{} : OperandRounding{kRoundoff<T>, kSmallestRounding<T>};

// Values, and for each the sum of what the rounding of its terms may move it by.
struct Estimates {
  explicit Estimates(std::size_t n) : value(n, 0.0), error(n, 0.0) {}
  void add(std::size_t i, double term, double error_of_term) {
    value[i] += term;
    error[i] += error_of_term;
  }

  std::vector<double> value, error;
};

struct AttentionReference {
  AttentionDims dims;
  std::vector<double> qkv;
  OperandRounding rounding;

  double at(std::int64_t b, std::int64_t t, int which, std::int64_t h, std::int64_t c) const {
    return qkv[index(b, t, which, h, c)];
  }
  std::size_t index(std::int64_t b, std::int64_t t, int which, std::int64_t h, std::int64_t c) const {
    return static_cast<std::size_t>((((b * dims.time + t) * 3 + which) * dims.heads + h) * dims.head_size + c);
  }
  std::size_t out_index(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t c) const {
    return static_cast<std::size_t>(((b * dims.time + t) * dims.heads + h) * dims.head_size + c);
  }

  // Calls row(b, h, t) for every query of every head.
  template <class F>
  void for_each_row(F row) const {
    for (std::int64_t b = 0; b < dims.batch; ++b) {
      for (std::int64_t h = 0; h < dims.heads; ++h) {
        for (std::int64_t t = 0; t < dims.time; ++t) row(b, h, t);
      }
    }
  }

  // Probabilities of the keys 0..t for the query at t, and the log-sum-exp of their scores.
  std::vector<double> probabilities(std::int64_t b, std::int64_t h, std::int64_t t, double* log_sum_exp) const {
    std::vector<double> p(static_cast<std::size_t>(t + 1));
    double largest = -HUGE_VAL, sum = 0.0;
    for (std::int64_t key = 0; key <= t; ++key) {
      double score = 0.0;
      for (std::int64_t c = 0; c < dims.head_size; ++c) score += at(b, t, 0, h, c) * at(b, key, 1, h, c);
      score /= std::sqrt(static_cast<double>(dims.head_size));
      p[static_cast<std::size_t>(key)] = score;
      largest = std::max(largest, score);
    }
    for (double& value : p) sum += value = std::exp(value - largest);
    for (double& value : p) value /= sum;
    *log_sum_exp = largest + std::log(sum);
    return p;
  }

  Estimates forward(std::vector<double>& log_sum_exp) const {
    Estimates y(qkv.size() / 3);
    log_sum_exp.assign(static_cast<std::size_t>(dims.batch * dims.heads * dims.time), 0.0);
    for_each_row([&](std::int64_t b, std::int64_t h, std::int64_t t) {
      const auto p = probabilities(b, h, t, &log_sum_exp[static_cast<std::size_t>((b * dims.heads + h) * dims.time + t)]);
      for (std::int64_t key = 0; key <= t; ++key) {
        const double weight = p[static_cast<std::size_t>(key)];
        for (std::int64_t c = 0; c < dims.head_size; ++c) {
          const double v = at(b, key, 2, h, c);
          y.add(out_index(b, t, h, c), weight * v, rounding.of(weight) * std::fabs(v));
        }
      }
    });
    return y;
  }

  // dqkv
  Estimates backward(const std::vector<double>& dy) const {
    Estimates dqkv(qkv.size());
    for_each_row([&](std::int64_t b, std::int64_t h, std::int64_t t) { backward_row(b, h, t, dy, dqkv); });
    return dqkv;
  }

  void backward_row(std::int64_t b, std::int64_t h, std::int64_t t, const std::vector<double>& dy, Estimates& dqkv) const {
    double unused, mean = 0.0, mean_error = 0.0;
    const auto p = probabilities(b, h, t, &unused);
    std::vector<double> dp(p.size(), 0.0);
    for (std::size_t key = 0; key < p.size(); ++key) {
      for (std::int64_t c = 0; c < dims.head_size; ++c) {
        const auto position = static_cast<std::int64_t>(key);
        const double gradient = dy[out_index(b, t, h, c)], term = gradient * at(b, position, 2, h, c);
        dp[key] += term;
        dqkv.add(index(b, position, 2, h, c), p[key] * gradient, rounding.of(p[key]) * std::fabs(gradient));
        // The mean is taken from y as it was stored: of rounded probabilities, and rounded itself.
        mean_error += 2 * rounding.of(p[key]) * std::fabs(term);
      }
      mean += p[key] * dp[key];
    }
    const double scale = 1.0 / std::sqrt(static_cast<double>(dims.head_size));
    for (std::size_t key = 0; key < p.size(); ++key) {
      const double ds = p[key] * (dp[key] - mean), ds_error = p[key] * mean_error + rounding.of(ds);
      const auto position = static_cast<std::int64_t>(key);
      for (std::int64_t c = 0; c < dims.head_size; ++c) {
        const double k = at(b, position, 1, h, c), q = at(b, t, 0, h, c);
        dqkv.add(index(b, t, 0, h, c), scale * ds * k, scale * ds_error * std::fabs(k));
        dqkv.add(index(b, position, 1, h, c), scale * ds * q, scale * ds_error * std::fabs(q));
      }
    }
  }
};

}  // namespace spillway::test
