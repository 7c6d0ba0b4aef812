// Cores divided among the ranks of a machine: properties over many shapes, the sentences, and this machine's own mask.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/affinity.h"
#include "base/core_share.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Cores = std::vector<int>;

Cores range(int first, int end) {
  Cores cores(static_cast<std::size_t>(end - first));
  std::iota(cores.begin(), cores.end(), first);
  return cores;
}

// Cores 0 .. cores-1 in `nodes` consecutive runs.
std::vector<int> consecutive_nodes(int cores, int nodes) {
  std::vector<int> node(static_cast<std::size_t>(cores));
  for (int core = 0; core < cores; ++core) node[static_cast<std::size_t>(core)] = core * nodes / cores;
  return node;
}

std::vector<Cores> shares(const std::vector<Cores>& masks, const std::vector<int>& node_of_core) {
  std::vector<Cores> result;
  std::string how;
  for (std::size_t rank = 0; rank < masks.size(); ++rank) {
    const CoreShare share = share_cores(masks, node_of_core, static_cast<int>(rank));
    if (rank == 0) how = share.how;
    EXPECT_EQ(share.how, how) << "all ranks say the same";
    result.push_back(share.cores);
  }
  return result;
}

std::string how(const std::vector<Cores>& masks, const std::vector<int>& node_of_core) {
  return share_cores(masks, node_of_core, 0).how;
}

std::set<int> union_of(const std::vector<Cores>& sets) {
  std::set<int> all;
  for (const Cores& cores : sets) all.insert(cores.begin(), cores.end());
  return all;
}

// No rank is empty, every core that some rank may use is used, no core is shared without need, and shares within the
// same nodes differ by at most one core.
void expect_fair(const std::vector<Cores>& got, const std::vector<Cores>& masks, const std::vector<int>& node_of_core) {
  EXPECT_EQ(union_of(got), union_of(masks));
  std::size_t given = 0;
  std::map<std::set<int>, std::pair<std::size_t, std::size_t>> sizes;  // by nodes: least and most
  for (const Cores& cores : got) {
    ASSERT_FALSE(cores.empty());
    EXPECT_TRUE(std::ranges::is_sorted(cores));
    given += cores.size();
    std::set<int> nodes;
    for (const int core : cores) {
      const auto index = static_cast<std::size_t>(core);
      nodes.insert(index < node_of_core.size() ? node_of_core[index] : 0);
    }
    auto& [least, most] = sizes.try_emplace(nodes, cores.size(), cores.size()).first->second;
    least = std::min(least, cores.size());
    most = std::max(most, cores.size());
  }
  for (const auto& [nodes, size] : sizes) EXPECT_LE(size.second - size.first, 1u);
  EXPECT_EQ(given, std::max(union_of(masks).size(), got.size()));
}

TEST(CoreShare, DividesOneMaskFairlyInEveryShape) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int cores = 1; cores <= 64; ++cores) {
      for (int nodes = 1; nodes <= std::min(4, cores); ++nodes) {
        for (const bool interleaved : {false, true}) {
          std::vector<int> node = consecutive_nodes(cores, nodes);
          for (int core = 0; interleaved && core < cores; ++core) node[static_cast<std::size_t>(core)] = core % nodes;
          const std::vector<Cores> masks(static_cast<std::size_t>(ranks), range(0, cores));
          const std::vector<Cores> got = shares(masks, node);
          expect_fair(got, masks, node);
          const auto [least, most] = std::ranges::minmax(got, {}, &Cores::size);
          EXPECT_GE(2 * least.size() * got.size(), static_cast<std::size_t>(cores)) << "at least half an equal share";
          if (ranks % nodes == 0 && cores % nodes == 0) {
            EXPECT_THAT(how(masks, node), Not(HasSubstr("span nodes"))) << ranks << " " << cores << " " << nodes;
          }
          if (HasFailure()) FAIL() << ranks << " ranks, " << cores << " cores, " << nodes << " nodes";
        }
      }
    }
  }
}

// Random masks, as containers and partly bound ranks have them, of scattered cores on scattered nodes.
TEST(CoreShare, DividesOddMasksFairly) {
  std::mt19937 random(23);
  for (int round = 0; round < 4000; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 8), limit = 1 + static_cast<int>(random() % 64);
    const int nodes = 1 + static_cast<int>(random() % 4), density = 1 + static_cast<int>(random() % 6);
    std::vector<int> node(random() % static_cast<std::size_t>(limit + 1));  // may end before the cores do
    for (int& n : node) n = static_cast<int>(random() % static_cast<unsigned>(nodes)) * 3;
    std::vector<Cores> masks;
    for (int rank = 0; rank < ranks; ++rank) {
      Cores mask = {static_cast<int>(random() % static_cast<unsigned>(limit))};
      for (int core = 0; core < limit; ++core) {
        if (random() % static_cast<unsigned>(density) == 0 && core != mask.front()) mask.push_back(core);
      }
      std::ranges::sort(mask);
      masks.push_back(mask);
    }
    const std::vector<Cores> got = shares(masks, node);
    EXPECT_EQ(union_of(got), union_of(masks));
    for (std::size_t a = 0; a < got.size(); ++a) {
      ASSERT_FALSE(got[a].empty());
      EXPECT_TRUE(std::ranges::is_sorted(got[a]));
      for (std::size_t b = 0; b < a; ++b) {
        Cores common;
        std::ranges::set_intersection(got[a], got[b], std::back_inserter(common));
        EXPECT_TRUE(common.empty() || (got[a] == got[b] && got[a].size() == 1)) << "shared only as whole single cores";
      }
    }
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST(CoreShare, KeepsWhatTheLauncherBound) {
  const std::vector<Cores> masks = {{4, 5}, {0}, {2, 3, 9}};
  EXPECT_EQ(shares(masks, {}), masks);
  EXPECT_EQ(how(masks, {}), "3 ranks keep the 6 cores that the launcher bound them to: 1 to 3 cores each");
  const std::vector<int> two_nodes = consecutive_nodes(8, 2);
  EXPECT_EQ(how({range(0, 4), range(4, 8)}, two_nodes),
            "2 ranks keep the 8 cores on 2 NUMA nodes that the launcher bound them to: 4 cores each, no rank spans nodes");
  EXPECT_THAT(how({{0, 7}, {1, 2}}, two_nodes), HasSubstr("2 cores each, rank 0 spans nodes"));
  EXPECT_EQ(how({range(0, 2)}, {}), "1 rank uses 2 cores");
}

TEST(CoreShare, RanksBoundToOneSocketDivideThatSocket) {
  const std::vector<Cores> masks = {range(0, 8), range(8, 16), range(0, 8), range(8, 16)};
  EXPECT_THAT(shares(masks, consecutive_nodes(16, 2)), ElementsAre(range(0, 4), range(8, 12), range(4, 8), range(12, 16)));
  EXPECT_EQ(how(masks, consecutive_nodes(16, 2)), "4 ranks divide 16 cores on 2 NUMA nodes: 4 cores each, no rank spans nodes");
}

TEST(CoreShare, NodesAreKeptWholeUnlessThatStarvesARank) {
  const auto all = [](int ranks, int cores) { return std::vector<Cores>(static_cast<std::size_t>(ranks), range(0, cores)); };
  EXPECT_EQ(how(all(8, 64), consecutive_nodes(64, 2)),
            "8 ranks divide 64 cores on 2 NUMA nodes: 8 cores each, no rank spans nodes");
  EXPECT_EQ(how(all(3, 8), {}), "3 ranks divide 8 cores: 2 to 3 cores each");
  EXPECT_THAT(shares(all(3, 8), consecutive_nodes(8, 2)), ElementsAre(range(0, 2), range(2, 4), range(4, 8)));
  EXPECT_EQ(how(all(2, 12), consecutive_nodes(12, 3)),
            "2 ranks divide 12 cores on 3 NUMA nodes: 6 cores each, ranks 0, 1 span nodes");
  std::vector<int> lopsided(32, 1);
  lopsided[0] = 0;  // what a container left of node 0
  EXPECT_THAT(shares(all(2, 32), lopsided), ElementsAre(range(0, 16), range(16, 32)));
  EXPECT_EQ(how(all(2, 32), lopsided), "2 ranks divide 32 cores on 2 NUMA nodes: 16 cores each, rank 0 spans nodes");
}

TEST(CoreShare, MoreRanksThanCoresShareThem) {
  const std::vector<Cores> masks(4, {0, 1});
  EXPECT_THAT(shares(masks, {}), ElementsAre(Cores{0}, Cores{0}, Cores{1}, Cores{1}));
  EXPECT_EQ(how(masks, {}), "4 ranks share 2 cores: ranks 0, 1 on core 0, ranks 2, 3 on core 1");
  EXPECT_EQ(how({{3}, {3}, range(8, 12), range(8, 12)}, {}),
            "4 ranks share 5 cores: ranks 0, 1 on core 3, rank 2 on cores 8-9, rank 3 on cores 10-11");
  EXPECT_EQ(how({{0}, {1}, {0}, {1}}, {}), "4 ranks share 2 cores: ranks 0, 2 on core 0, ranks 1, 3 on core 1");
}

TEST(CoreShare, AnUnknownMaskChangesNothing) {
  const std::vector<Cores> masks = {{0, 1}, {}, {0, 1}};
  EXPECT_EQ(shares(masks, {}), masks);
  EXPECT_EQ(how(masks, {}), "the affinity mask of rank 1 cannot be read, so cores stay as they are");
}

TEST(CoreList, IsWrittenAndReadAsLinuxDoes) {
  EXPECT_EQ(core_list({}), "");
  EXPECT_EQ(core_list(Cores{7}), "7");
  EXPECT_EQ(core_list(Cores{0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  EXPECT_EQ(parse_core_list("0-3,8,10-11\n"), (Cores{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_core_list("5,1,1-2"), (Cores{1, 2, 5})) << "ascending, each once";
  for (const char* text : {"", "\n", ",", "-", "x", "3-", "-3", "4-2", "99999999999", "0-99999999"}) {
    EXPECT_THAT(parse_core_list(text), IsEmpty()) << text;
  }
  EXPECT_EQ(parse_core_list("x,4,7-,9"), (Cores{4, 9})) << "what does not parse is left out";
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Cores cores;
    for (int core = 0; core < 200; ++core) {
      if (random() % 3 == 0) cores.push_back(core);
    }
    EXPECT_EQ(parse_core_list(core_list(cores)), cores);
  }
}

TEST(Affinity, NodesAreReadFromTheirFolders) {
  const testing::TestFolder folder;
  const auto write = [&](const std::string& node, const std::string& cores) {
    std::filesystem::create_directory(folder.path() + "/" + node);
    std::ofstream(folder.path() + "/" + node + "/cpulist") << cores << "\n";
  };
  write("node0", "0-1,4");
  write("node3", "2-3");
  write("node4", "");  // memory without cores
  write("power", "0-9");
  std::ofstream(folder.path() + "/online") << "0,3-4\n";
  EXPECT_THAT(node_of_cores(folder.path()), ElementsAre(0, 0, 3, 3, 0));
  EXPECT_THAT(node_of_cores(folder.path() + "/absent"), IsEmpty());
}

// On a thread of its own, so that this process keeps its mask.
template <class F>
void on_a_thread(F f) {
  std::thread(f).join();
}

TEST(Affinity, BindsThisThreadAndThoseItStarts) {
  const Cores before = allowed_cores();
  ASSERT_FALSE(before.empty());
  on_a_thread([&] {
    const Binding binding = bind_to_cores(std::span(before).last(1));
    EXPECT_EQ(binding.threads, 1);
    EXPECT_EQ(binding.note, "");
    EXPECT_THAT(allowed_cores(), ElementsAre(before.back()));
    on_a_thread([&] { EXPECT_THAT(allowed_cores(), ElementsAre(before.back())); });
  });
  on_a_thread([&] {
    const Binding unchanged = bind_to_cores({});
    EXPECT_EQ(unchanged.threads, static_cast<int>(before.size()));
    EXPECT_EQ(unchanged.note, "");
  });
  EXPECT_EQ(allowed_cores(), before);
}

TEST(Affinity, CoresThatAreNotThereAreANoteAndNoFailure) {
  const Cores before = allowed_cores();
  on_a_thread([&] {
    const Binding binding = bind_to_cores(Cores{5000});
    EXPECT_EQ(binding.threads, static_cast<int>(before.size()));
    EXPECT_THAT(binding.note, AllOf(HasSubstr("cannot bind to cores 5000"), HasSubstr("Invalid argument")));
    EXPECT_EQ(allowed_cores(), before);
  });
  on_a_thread([&] {
    const Binding binding = bind_to_cores(Cores{before.front(), 5000});
    EXPECT_EQ(binding.threads, 1);
    EXPECT_EQ(binding.note, "asked for cores " + std::to_string(before.front()) + ",5000, and may use " +
                                std::to_string(before.front()) + " only");
  });
}

}  // namespace
}  // namespace spillway
