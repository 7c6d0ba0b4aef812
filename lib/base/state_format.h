// The optimizer and the format of its state, for people.
#pragma once

#include <string>

#include "spillway/optimizer.h"

namespace spillway {

// "adam with fp32 moments", "sgd without moments"
std::string text_of(const StateFormat& format);

// Master and moments, without padding: 12 for Adam with fp32 moments.
double state_bytes_per_parameter(const StateFormat& format);

}  // namespace spillway
