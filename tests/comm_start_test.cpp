// How a process finds out how it was started, what it says when the ranks cannot meet, and what it leaves behind. Built
// with no_mpi.cpp whether there is MPI or not; communicator_test is the other side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "comm/deadline.h"
#include "comm/launch.h"
#include "comm/mpi_world.h"
#include "comm/start_markers.h"
#include "spillway/communicator.h"
#include "spillway/error.h"
#include "support/test_folder.h"

namespace spillway::testing {
namespace {

using comm::Launch;
using comm::Launcher;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Table = std::map<std::string, std::string>;

Launch launch_of(const Table& table) {
  return comm::detect_launch([&](const char* name) {
    const auto found = table.find(name);
    return found == table.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, APlainStartIsAWorldOfOne) {
  const Launch launch = launch_of({{"PATH", "/bin"}});
  EXPECT_EQ(launch.launcher, Launcher::none);
  EXPECT_EQ(launch.size, 1);
}

TEST(Launch, MpirunTellsRanksAndLocalRanks) {
  const Launch launch = launch_of({{"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"PMIX_NAMESPACE", "42"}, {"PMIX_RANK", "5"}, {"PMIX_SERVER_TMPDIR", "/run/job"}});
  EXPECT_EQ(launch.launcher, Launcher::mpi);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.job, "42");
  EXPECT_EQ(launch.folder, "/run/job");
}

TEST(Launch, SrunWithPmixOrPmiIsMpi) {
  const Launch pmix = launch_of({{"PMIX_RANK", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(pmix.launcher, Launcher::mpi);
  EXPECT_EQ(pmix.rank, 3);
  EXPECT_EQ(pmix.size, 4);
  EXPECT_EQ(pmix.local_rank, 1);
  EXPECT_EQ(pmix.job, "7.0");
  const Launch pmi = launch_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(pmi.launcher, Launcher::mpi);
  EXPECT_EQ(pmi.size, 2);
  // As many as MPI will say.
  EXPECT_EQ(launch_of({{"PMIX_RANK", "0"}}).launcher, Launcher::mpi);
  EXPECT_EQ(launch_of({{"PMIX_RANK", "0"}}).size, 0);
}

TEST(Launch, OneRankNeedsNoMpiWhoeverStartsIt) {
  for (const Table& table : {Table{{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}, Table{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
                             Table{{"PMIX_RANK", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}, Table{{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}},
                             Table{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "localhost"}}})
    EXPECT_EQ(launch_of(table).launcher, Launcher::none) << table.begin()->first;
}

TEST(Launch, RanksThatAreGivenAFileMeetThere) {
  const Launch launch = launch_of({{"SPILLWAY_RENDEZVOUS", "/run/here"}, {"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "2"}});
  EXPECT_EQ(launch.launcher, Launcher::file);
  EXPECT_EQ(launch.rendezvous, "/run/here");
  EXPECT_EQ(launch.rank, 2);
  EXPECT_EQ(launch.size, 3);
  EXPECT_EQ(launch.local_rank, 2);
  EXPECT_EQ(launch.local_size, 3);
  // Asked for by name.
  EXPECT_EQ(launch_of({{"SPILLWAY_RENDEZVOUS", "here"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}}).launcher,
            Launcher::file);
  EXPECT_EQ(launch_of({{"SPILLWAY_RENDEZVOUS", "here"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}}).launcher, Launcher::none);
}

TEST(Launch, AFileToMeetAtNeedsRanks) {
  for (const Table& table : {Table{{"SPILLWAY_RENDEZVOUS", "here"}}, Table{{"SPILLWAY_RENDEZVOUS", "here"}, {"RANK", "0"}},
                             Table{{"SPILLWAY_RENDEZVOUS", "here"}, {"WORLD_SIZE", "2"}}, Table{{"SPILLWAY_RENDEZVOUS", "here"}, {"RANK", "2"}, {"WORLD_SIZE", "2"}},
                             Table{{"SPILLWAY_RENDEZVOUS", ""}, {"RANK", "0"}, {"WORLD_SIZE", "2"}}})
    EXPECT_THROW(launch_of(table), CommError);
}

const Table kTorchrun = {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "node1"},
                         {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "0"}};

Table torchrun_with(const std::string& name, const std::string& value) {
  Table table = kTorchrun;
  table[name] = value;
  return table;
}

TEST(Launch, TorchrunOnOneMachineMeetsAtItsJobsFile) {
  const Launch launch = launch_of(kTorchrun);
  EXPECT_EQ(launch.launcher, Launcher::file);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_size, 4);
  EXPECT_EQ(launch.rendezvous, "");
  // The same for all ranks, and no other run's.
  EXPECT_EQ(launch_of(torchrun_with("RANK", "3")).job, launch.job);
  for (const char* name : {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"})
    EXPECT_NE(launch_of(torchrun_with(name, "7")).job, launch.job) << name;
}

TEST(Launch, TorchrunOnSeveralMachinesIsTorchrun) {
  EXPECT_EQ(launch_of(torchrun_with("LOCAL_WORLD_SIZE", "2")).launcher, Launcher::torchrun);
  Table old = kTorchrun;
  old.erase("TORCHELASTIC_RUN_ID");
  EXPECT_EQ(launch_of(old).launcher, Launcher::torchrun);
}

TEST(Launch, AnAllocationAloneIsAPlainStart) {
  // Inside an sbatch script of four tasks the script itself runs once.
  EXPECT_EQ(launch_of({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "7"}}).launcher, Launcher::none);
  EXPECT_EQ(launch_of({{"RANK", "3"}}).launcher, Launcher::none);
}

TEST(Launch, MpirunInsideOtherLaunchersCounts) {
  EXPECT_EQ(launch_of({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"SLURM_STEP_NUM_TASKS", "9"}, {"RANK", "0"},
                       {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "x"}}).size, 2);
}

TEST(Launch, ACountThatIsNoNumberIsRefused) {
  for (const char* text : {"", "four", "4x", "-1", "99999999999"})
    EXPECT_THROW(launch_of({{"OMPI_COMM_WORLD_SIZE", text}}), CommError) << text;
}

// Variables for as long as it lives.
class Variables {
 public:
  explicit Variables(const Table& table) : table_(table) {
    for (const auto& [name, value] : table_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : table_) unsetenv(name.c_str());
  }

 private:
  const Table table_;
};

std::string join_error(const Table& table) {
  const Variables variables(table);
  try {
    join_world({});
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(JoinWorld, TorchrunIsToldWhatToUse) {
  EXPECT_THAT(join_error(torchrun_with("LOCAL_WORLD_SIZE", "2")),
              ::testing::AllOf(HasSubstr("rank 1 of 4 of torchrun"), HasSubstr("on one machine only"), HasSubstr("mpirun -n 4 spillway train")));
}

TEST(JoinWorld, SrunWithoutPmixIsToldWhatToUse) {
  EXPECT_THAT(join_error({{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "2"}}),
              ::testing::AllOf(HasSubstr("task 2 of 4 of srun"), HasSubstr("srun --mpi=pmix -n 4 spillway train")));
}

TEST(JoinWorld, APlainStartJoinsNobody) {
  const std::unique_ptr<World> world = join_world({});
  EXPECT_EQ(world->size(), 1);
  EXPECT_EQ(world->communicator()->name(), "self");
}

TEST(JoinWorld, ABuildWithoutMpiRefusesRanks) {
  EXPECT_FALSE(comm::has_mpi());
  EXPECT_THAT(join_error({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "1"}}), HasSubstr("rank 1 of 4: this build of Spillway has no MPI"));
}

Launch local_rank(int rank, int size, int local_size) {
  Launch launch;
  launch.launcher = Launcher::mpi;
  launch.rank = launch.local_rank = rank;
  launch.size = size;
  launch.local_size = local_size;
  launch.job = "12.3/4";
  return launch;
}

TEST(StartMarkers, NameWhoIsMissingAndLeaveNothing) {
  const TestFolder folder;
  {
    const comm::StartMarkers zero(local_rank(0, 4, 4), folder.path());
    EXPECT_THAT(zero.missing_local_ranks(), ElementsAre(1, 2, 3));
    const comm::StartMarkers three(local_rank(3, 4, 4), folder.path());
    EXPECT_THAT(zero.missing_local_ranks(), ElementsAre(1, 2));
    EXPECT_THAT(zero.explain(60, "here"), HasSubstr("[comm] rank 0 of 4 (host here, pid " + std::to_string(getpid()) +
                                                    ") waited 60 s for the other ranks to start: ranks 1, 2 of this machine have not started"));
    const comm::StartMarkers one(local_rank(1, 4, 4), folder.path());
    EXPECT_THAT(zero.explain(60, "here"), HasSubstr("rank 2 of this machine has not started"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(StartMarkers, AMarkOfADeadProcessDoesNotCount) {
  const TestFolder folder;
  const comm::StartMarkers zero(local_rank(0, 2, 2), folder.path());
  const pid_t child = fork();
  if (child == 0) {
    new comm::StartMarkers(local_rank(1, 2, 2), folder.path());
    _exit(0);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_THAT(zero.missing_local_ranks(), ElementsAre(1));
}

TEST(StartMarkers, RanksOfOtherMachinesAreNotNamed) {
  const TestFolder folder;
  const comm::StartMarkers zero(local_rank(0, 4, 2), folder.path());
  EXPECT_THAT(zero.explain(5, "here"), HasSubstr("local rank 1 of this machine has not started"));
  const comm::StartMarkers one(local_rank(1, 4, 2), folder.path());
  EXPECT_THAT(zero.explain(5, "here"), HasSubstr("all 2 of this machine have, one of another has not"));
}

TEST(StartMarkers, PreferTheFolderOfTheJob) {
  const TestFolder temporary, job;
  Launch launch = local_rank(0, 2, 2);
  launch.folder = job.path();
  const comm::StartMarkers marked(launch, temporary.path());
  EXPECT_FALSE(std::filesystem::is_empty(job.path()));
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
  launch.folder = std::string(job.path()) + "/not/there";
  const comm::StartMarkers elsewhere(launch, temporary.path());
  EXPECT_FALSE(std::filesystem::is_empty(temporary.path()));
}

TEST(StartMarkers, WithoutAPlaceNobodyIsNamed) {
  const comm::StartMarkers nowhere(local_rank(0, 4, 4), "/proc/no/such/folder");
  EXPECT_THAT(nowhere.missing_local_ranks(), IsEmpty());
  EXPECT_THAT(nowhere.explain(5, "here"), HasSubstr("at least one has not"));
}

TEST(Deadline, EndsTheProcessWithItsText) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const comm::Deadline deadline(0.01, [] { return std::string("waited in vain"); }, [] { std::fputs("cleaned up", stderr); });
        for (;;) pause();
      },
      ::testing::ExitedWithCode(7), "waited in vain\ncleaned up");
}

TEST(Deadline, DoesNothingWhenMet) {
  bool late = false;
  { const comm::Deadline deadline(3600, [&] { return late = true, std::string(); }); }
  EXPECT_FALSE(late);
}

}  // namespace
}  // namespace spillway::testing
