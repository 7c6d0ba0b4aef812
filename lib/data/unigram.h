// How well a model could do that knows nothing but how often each token occurs.
#pragma once

#include "data/token_data.h"

namespace spillway {

// Entropy of the token frequencies, in nats per token: the loss a trained model must fall well below.
double unigram_entropy(const TokenData& data, std::int64_t vocabulary);

}  // namespace spillway
