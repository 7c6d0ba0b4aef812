// What ranks tell each other beside their work: that they live, what they do, and what went wrong. Sent as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace spillway::comm {

// Text of bounded length in place; what does not fit is cut and ends in "...".
template <std::size_t kBytes>
class FixedText {
 public:
  void set(std::string_view text) {
    if (text.size() < kBytes) {
      text.copy(bytes_, text.size());
      bytes_[text.size()] = '\0';
      return;
    }
    text.copy(bytes_, kBytes - 4);
    std::string_view("...").copy(bytes_ + kBytes - 4, 3);
    bytes_[kBytes - 1] = '\0';
  }
  std::string_view view() const { return bytes_; }
  bool empty() const { return bytes_[0] == '\0'; }

 private:
  char bytes_[kBytes] = {};
};

enum class Phase : std::int32_t {
  working,
  leaving,  // done, and waits for the others to be done
  gone,     // has heard that all are done, and says no more
};

struct Status {
  Phase phase = Phase::working;
  std::int64_t step = -1;  // -1: not in a step yet
  FixedText<48> operation;
  FixedText<96> object;
};

// Which rank ended the work of all, and how. The text is complete.
struct Verdict {
  enum class Cause : std::int32_t { none, failed, died, silent };

  Cause cause = Cause::none;
  std::int32_t culprit = -1;
  FixedText<1280> text;

  explicit operator bool() const { return cause != Cause::none; }
};

struct Beat {
  Status status;
  Verdict verdict;
  std::int32_t suspect = -1;  // to rank 0: a rank whose process has ended
  // From rank 0.
  bool all_left = false;  // every rank is done
  bool all_know = false;  // every rank that can hear has heard the verdict
};
// Small enough for MPI to send without asking the receiver, who may be stopped.
static_assert(std::is_trivially_copyable_v<Beat> && sizeof(Beat) <= 2048);

// "step 17 in reduce of block 3", "the start".
std::string where(const Status& status);

}  // namespace spillway::comm
