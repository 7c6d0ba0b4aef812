// The inverse of the normal distribution function. Private to lib/model.
#pragma once

namespace spillway {

// z such that a standard normal variable is below z with probability p, 0 < p < 1. Relative error about
// 1e-16 (Wichura 1988, "Algorithm AS 241: The Percentage Points of the Normal Distribution", PPND16).
double inverse_normal_cdf(double p);

}  // namespace spillway
