// What the tests adapt to a sanitizer build: how often they repeat, never what they check.
#pragma once

#include <cstdint>

namespace spillway::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

constexpr std::uint64_t fewer_if_sanitized(std::uint64_t plain, std::uint64_t sanitized) { return kSanitized ? sanitized : plain; }

}  // namespace spillway::testing
