#include "config/batch_triangle.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace spillway::config {

namespace {

// The product, or nothing when it does not fit.
std::optional<std::int64_t> product(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t ab = 0, abc = 0;
  if (__builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc)) return std::nullopt;
  return abc;
}

std::string number_or(const std::optional<std::int64_t>& number, std::string_view otherwise) {
  return number ? fmt::format("{}", *number) : std::string(otherwise);
}

// Of n, at most `limit`; both at least 1.
std::int64_t largest_divisor(std::int64_t n, std::int64_t limit) {
  std::int64_t divisor = std::min(n, limit);
  while (n % divisor != 0) --divisor;
  return divisor;
}

// Changes of one number each that make the equation true, given the sizes that the file sets.
std::vector<std::string> fixes(const BatchSizes& given, std::int64_t world_size) {
  std::vector<std::string> fixes;
  const std::int64_t micro = given.micro.value_or(1);
  const std::int64_t accumulation = given.accumulation.value_or(1);
  const std::int64_t train = *given.train;
  const std::int64_t per_round = micro * accumulation * world_size;  // fits: checked before
  const std::int64_t nearest = std::max<std::int64_t>(1, (train + per_round / 2) / per_round) * per_round;
  const bool third_is_free = !given.micro || !given.accumulation;
  fixes.push_back(fmt::format("train_batch_size {}", third_is_free ? nearest : per_round));
  if (given.micro && train % (accumulation * world_size) == 0) {
    fixes.push_back(fmt::format("train_micro_batch_size_per_gpu {}", train / (accumulation * world_size)));
  }
  if (given.accumulation && train % (micro * world_size) == 0) {
    fixes.push_back(fmt::format("gradient_accumulation_steps {}", train / (micro * world_size)));
  }
  if (train % (micro * accumulation) == 0) {
    // With a free third number any divisor fits; the most ranks that do not exceed those there are.
    std::int64_t world = train / (micro * accumulation);
    if (third_is_free) world = largest_divisor(world, world_size);
    fixes.push_back(ranks(world));
  }
  return fixes;
}

std::string contradiction(const BatchSizes& given, std::int64_t world_size) {
  return fmt::format(
      "train_batch_size {} is not train_micro_batch_size_per_gpu {} x gradient_accumulation_steps {} x {}{}; any one "
      "of these fits: {}", *given.train, number_or(given.micro, "(any)"), number_or(given.accumulation, "(any)"),
      ranks(world_size),
      given.micro && given.accumulation
          ? fmt::format(" = {}", *given.micro * *given.accumulation * world_size) : std::string(),
      fmt::join(fixes(given, world_size), ", or "));
}

}  // namespace

std::string ranks(std::int64_t world_size) {
  return world_size == 1 ? "1 rank" : fmt::format("{} ranks", world_size);
}

std::string complete(BatchSizes& sizes, std::int64_t world_size) {
  const BatchSizes given = sizes;
  const std::optional<std::int64_t> known = product(given.micro.value_or(1), given.accumulation.value_or(1), world_size);
  if (!known) {
    return fmt::format("train_micro_batch_size_per_gpu {} x gradient_accumulation_steps {} x {} is more than 2^63",
                       given.micro.value_or(1), given.accumulation.value_or(1), ranks(world_size));
  }
  if (!given.train) {
    sizes = {.train = *known, .micro = given.micro.value_or(1), .accumulation = given.accumulation.value_or(1)};
    return {};
  }
  if (given.micro) {
    sizes.accumulation = given.accumulation.value_or(*given.train / (*given.micro * world_size));
  } else {
    sizes.accumulation = given.accumulation.value_or(1);
    sizes.micro = *given.train / (*sizes.accumulation * world_size);
  }
  if (*sizes.micro * *sizes.accumulation * world_size == *given.train) return {};
  sizes = given;
  return contradiction(given, world_size);
}

}  // namespace spillway::config
