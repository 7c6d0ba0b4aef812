// How the ranks of one machine share its cores: pure arithmetic on their affinity masks.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// "0-3,8" and back: ascending core numbers as Linux writes them. What does not parse is left out.
std::string core_list(std::span<const int> cores);
std::vector<int> parse_core_list(std::string_view text);

struct CoreShare {
  std::vector<int> cores;  // of this rank, ascending; empty only if its mask is not known
  std::string how;         // one sentence about all ranks of the machine, the same on each
};

// `masks`: by local rank, the cores it may run on, ascending; empty: not known, then nothing is changed.
// `node_of_core`: NUMA node by core number; cores behind its end are on node 0.
//
// A rank whose cores no other has keeps them: that is what its launcher bound it to. Ranks whose masks overlap divide
// the cores of all their masks, which together they use up: each node goes to as many ranks as its cores are worth,
// whose shares differ by at most one core. Ranks are cut across nodes when there are fewer ranks than nodes, or when whole
// nodes would leave one with less than half an equal share, for a step is as slow as its slowest rank. With more ranks
// than cores, ranks share a core.
CoreShare share_cores(std::span<const std::vector<int>> masks, std::span<const int> node_of_core, int local_rank);

}  // namespace spillway
