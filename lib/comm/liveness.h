// Who is alive, what they did last, and when to give up on one: the rules of the beats as a state machine without
// clock, threads or messages.
//
// A star around rank 0: every rank tells rank 0 how it is, rank 0 tells every rank the same of itself. Rank 0 judges
// the others and the others judge rank 0; the first verdict counts and ends the work of all. A rank that
// sees another's process end reports it to rank 0, which knows what that one did last. With rank 0 gone, whoever
// notices tells everybody.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/beat.h"
#include "comm/process_identity.h"

namespace spillway::comm {

class Liveness {
 public:
  // Times are seconds of any monotonic clock.
  Liveness(std::vector<ProcessIdentity> members, int rank, double timeout_s, double now);

  // What happened.
  void set_status(const Status& status);  // of this rank, its phase aside
  void heard(int from, const Beat& beat, double now);
  void ended(int rank);  // its process
  void failed(std::string_view error);  // this rank
  void leave();          // this rank has done its work
  void tick(double now); // after all that was received has been passed to heard()

  // What follows from it.
  const Verdict& verdict() const { return verdict_; }
  // Everybody who can hear has heard the verdict: whoever knows it may end.
  bool all_know() const { return all_know_; }
  // Everybody is done and knows it: nobody sends any more.
  bool all_gone() const { return all_gone_; }

  // What to send, and to whom.
  Beat beat() const;
  const std::vector<int>& partners() const { return partners_; }
  bool expects(int rank) const;  // false once it is dead or gone: nothing is sent to it
  // Changes whenever the others should hear at once.
  int news() const { return news_; }

 private:
  struct Peer {
    Status status;
    double heard;
    bool has_ended = false;
    bool knows = false;
  };

  void judge(int rank, Verdict::Cause cause, const std::string& text);
  void adopt(const Verdict& verdict);
  void judge_silence(double now);
  bool hears(int rank) const;
  void gather_at_centre();
  std::string name_of(int rank) const;

  const std::vector<ProcessIdentity> members_;
  const int rank_;
  const double timeout_s_;
  std::vector<Peer> peers_;
  std::vector<int> partners_;
  Status self_;
  Verdict verdict_;
  double last_tick_;
  double judged_at_ = 0;
  int suspect_ = -1;
  int news_ = 0;
  bool all_left_ = false;
  bool all_know_ = false;
  bool all_gone_ = false;
};

}  // namespace spillway::comm
