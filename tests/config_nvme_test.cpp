// The keys of the NVMe tier: its folders, what of gradients and activations goes there, and how it is read and written.
#include <algorithm>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/config.h"
#include "support/config_text.h"
#include "support/test_folder.h"

namespace spillway {
namespace {

using testing::error_of;
using testing::parse;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Source = KeyReport::Source;

constexpr const char* kPath = "zero_optimization.offload_optimizer.nvme_path";

// The optimizer's state on nvme, in the folder or folders of this JSON value.
std::string optimizer_in(const std::string& folders) {
  return R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": )" + folders + "}}}";
}

std::string with_spillway(const std::string& members) {
  return R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}, "spillway": {)" + members + "}}";
}

const KeyReport& row(const Config& config, const std::string& path) {
  return *std::find_if(config.keys.begin(), config.keys.end(), [&](const KeyReport& report) { return report.path == path; });
}

TEST(NvmePaths, AreOneFolderOrAListOfThem) {
  EXPECT_THAT(parse(optimizer_in(R"("/a")")).offload_optimizer.nvme_paths, ElementsAre("/a"));
  EXPECT_THAT(parse(optimizer_in(R"(["/a"])")).offload_optimizer.nvme_paths, ElementsAre("/a"));
  const Config config = parse(optimizer_in(R"(["/b", "/a", "/c"])"));
  EXPECT_THAT(config.offload_optimizer.nvme_paths, ElementsAre("/b", "/a", "/c"));
  EXPECT_EQ(row(config, kPath).value, R"(["/b","/a","/c"])");
  EXPECT_EQ(row(config, kPath).source, Source::file);
  EXPECT_THAT(parse(config.effective_json).offload_optimizer.nvme_paths, ElementsAre("/b", "/a", "/c"));
  for (const std::string folders : {R"("")", "[]", R"(["/a", ""])", R"(["/a", 3])", R"([["/a"]])", "7", "{}"}) {
    EXPECT_THAT(error_of(optimizer_in(folders)), HasSubstr(std::string(kPath) + ": expected the path of a folder, or a list of such")) << folders;
  }
}

TEST(NvmePaths, NameNoFolderTwice) {
  EXPECT_THAT(error_of(optimizer_in(R"(["/a", "/b", "/a"])")), HasSubstr("\"/a\" is there twice"));
  EXPECT_THAT(error_of(optimizer_in(R"(["/a", "/b/../a/"])")), HasSubstr("\"/a\" and \"/b/../a/\" are the same folder"));
  EXPECT_THAT(error_of(optimizer_in(R"([".", "./"])")), HasSubstr("are the same folder"));
  const testing::TestFolder folder;
  const std::filesystem::path here = folder.path();
  std::filesystem::create_directory(here / "disk");
  std::filesystem::create_directory_symlink(here / "disk", here / "link");
  const std::string disk = (here / "disk").string(), link = (here / "link").string();
  EXPECT_THAT(error_of(optimizer_in("[\"" + disk + "\", \"" + link + "\"]")), HasSubstr("are the same folder; name each once"));
  EXPECT_EQ(error_of(optimizer_in("[\"" + disk + "\", \"" + disk + "2\"]")), "no error");
}

TEST(NvmePaths, AreOfEachKindOfState) {
  const Config config = parse(R"({"zero_optimization": {"stage": 3,
      "offload_param": {"device": "nvme", "nvme_path": ["/a", "/b/"]},
      "offload_optimizer": {"device": "nvme", "nvme_path": ["/b", "/c"]}}, "spillway": {"offload_gradients": "nvme",
      "offload_activations": "nvme", "nvme_path": "/d"}})");
  const NvmeFolders folders = nvme_folders(config);
  EXPECT_THAT(folders.paths, ElementsAre("/a", "/b/", "/c", "/d"));
  EXPECT_THAT(folders.weights, ElementsAre(0, 1));
  EXPECT_THAT(folders.optimizer_state, ElementsAre(1, 2)) << "/b is /b/";
  EXPECT_THAT(folders.gradients, ElementsAre(3));
  EXPECT_THAT(folders.activations, ElementsAre(3));
  EXPECT_THAT(nvme_folders(parse("{}")).paths, IsEmpty());
  const NvmeFolders one = nvme_folders(parse(optimizer_in(R"("/a")")));
  EXPECT_THAT(one.paths, ElementsAre("/a"));
  EXPECT_THAT(one.weights, IsEmpty());
  EXPECT_THAT(one.gradients, IsEmpty());
  EXPECT_THAT(one.activations, IsEmpty());
}

TEST(NvmePaths, OfGradientsAndActivationsAreThoseOfTheSectionsUnlessNamed) {
  const std::string sections = R"({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a"},
      "offload_optimizer": {"device": "nvme", "nvme_path": ["/b", "/a/."]}}, "spillway": {"offload_activations": "nvme")";
  const Config config = parse(sections + "}}");
  EXPECT_THAT(config.spillway.nvme_paths, ElementsAre("/a", "/b"));
  EXPECT_EQ(row(config, "spillway.nvme_path").source, Source::derived);
  EXPECT_THAT(parse(sections + R"(, "nvme_path": "/x"}})").spillway.nvme_paths, ElementsAre("/x"));
  EXPECT_THAT(parse(with_spillway(R"("nvme_path": "/x")")).spillway.nvme_paths, IsEmpty()) << "nothing is on nvme";
  for (const std::string key : {"offload_gradients", "offload_activations"}) {
    EXPECT_THAT(error_of(with_spillway("\"" + key + R"(": "nvme")")),
                AllOf(HasSubstr("spillway.nvme_path: spillway." + key + " is \"nvme\" and needs a folder"), HasSubstr("\"/local_nvme\"")));
    EXPECT_EQ(error_of(with_spillway("\"" + key + R"(": "nvme", "nvme_path": "/x")")), "no error");
  }
}

TEST(Gradients, WaitOnTheHostOrOnNvme) {
  EXPECT_EQ(parse("{}").spillway.offload_gradients, OffloadDevice::cpu);
  EXPECT_EQ(parse(with_spillway(R"("offload_gradients": "NVMe", "nvme_path": "/x")")).spillway.offload_gradients, OffloadDevice::nvme);
  EXPECT_THAT(error_of(with_spillway(R"("offload_gradients": "none")")), AllOf(HasSubstr("\"none\" is not supported"), HasSubstr("allowed: cpu, nvme")));
  const Config on_device = parse(R"({"spillway": {"offload_gradients": "nvme"}})");
  EXPECT_EQ(on_device.spillway.offload_gradients, OffloadDevice::cpu);
  EXPECT_THAT(on_device.warnings, Contains(AllOf(HasSubstr("spillway.offload_gradients"), HasSubstr("the optimizer runs on the device"))));
}

TEST(Activations, GoWhereTheKeySaysOrWhereCpuCheckpointingDoes) {
  const auto activations = [](const std::string& spillway, bool cpu_checkpointing) {
    return parse(std::string(R"({"activation_checkpointing": {"cpu_checkpointing": )") + (cpu_checkpointing ? "true" : "false") + R"(}, "spillway": {)" + spillway +
                 "}}");
  };
  EXPECT_EQ(activations("", false).offload_activations, OffloadDevice::none);
  EXPECT_EQ(activations("", true).offload_activations, OffloadDevice::cpu);
  EXPECT_EQ(row(activations("", true), "spillway.offload_activations").source, Source::derived);
  EXPECT_EQ(activations(R"("offload_activations": "cpu")", false).offload_activations, OffloadDevice::cpu);
  EXPECT_EQ(activations(R"("offload_activations": "auto")", true).offload_activations, OffloadDevice::cpu);
  EXPECT_EQ(activations(R"("offload_activations": "nvme", "nvme_path": "/x")", true).offload_activations, OffloadDevice::nvme);
  EXPECT_THAT(error_of(R"({"activation_checkpointing": {"cpu_checkpointing": true}, "spillway": {"offload_activations": "none"}})"),
              HasSubstr("keep one of the two"));
}

TEST(Aio, IsHonoured) {
  const AioConfig defaults = parse("{}").aio;
  EXPECT_FALSE(defaults.block_size.has_value());
  EXPECT_FALSE(defaults.queue_depth.has_value());
  EXPECT_EQ(defaults.intra_op_parallelism, 1);
  EXPECT_TRUE(defaults.single_submit);
  EXPECT_TRUE(defaults.overlap_events);
  const Config config = parse(R"({"aio": {"block_size": 262144, "queue_depth": 32, "intra_op_parallelism": 4, "single_submit": false,
      "overlap_events": false, "thread_count": 8}, "spillway": {"submission_polling": true, "completion_polling": true}})");
  EXPECT_EQ(config.aio.block_size, 262144);
  EXPECT_EQ(config.aio.queue_depth, 32);
  EXPECT_EQ(config.aio.intra_op_parallelism, 4);
  EXPECT_FALSE(config.aio.single_submit);
  EXPECT_FALSE(config.aio.overlap_events);
  EXPECT_TRUE(config.spillway.submission_polling);
  EXPECT_TRUE(config.spillway.completion_polling);
  EXPECT_THAT(config.warnings, ::testing::Not(Contains(HasSubstr("aio"))));
  EXPECT_THAT(row(config, "aio.thread_count").note, HasSubstr("DeepSpeed's code does not read it either"));
}

TEST(Aio, BlocksAreWholePages) {
  const auto block = [](const std::string& bytes) { return parse(R"({"aio": {"block_size": )" + bytes + "}}"); };
  EXPECT_EQ(block("1").aio.block_size, 4096);
  EXPECT_EQ(block("4096").aio.block_size, 4096);
  EXPECT_EQ(block("4097").aio.block_size, 8192);
  EXPECT_EQ(block("1073741824").aio.block_size, 1073741824);
  EXPECT_THAT(block("4097").warnings, Contains(HasSubstr("aio.block_size: 4097 is not a whole number of pages of 4096 bytes, as direct I/O needs it; using 8192")));
  EXPECT_THAT(block("4096").warnings, ::testing::Not(Contains(HasSubstr("aio"))));
  EXPECT_EQ(row(block("4097"), "aio.block_size").value, "8192");
}

TEST(Aio, NamesItsLimits) {
  const auto aio = [](const std::string& member) { return error_of(R"({"aio": {)" + member + "}}"); };
  EXPECT_THAT(aio(R"("block_size": 0)"), HasSubstr("aio.block_size: 0 is out of range; allowed: at least 1 and at most 1073741824"));
  EXPECT_THAT(aio(R"("block_size": 1073741825)"), HasSubstr("at most 1073741824"));
  EXPECT_THAT(aio(R"("queue_depth": 0)"), HasSubstr("allowed: at least 1 and at most 4096"));
  EXPECT_THAT(aio(R"("queue_depth": 4097)"), HasSubstr("allowed: at least 1 and at most 4096"));
  EXPECT_THAT(aio(R"("intra_op_parallelism": 65)"), HasSubstr("allowed: at least 1 and at most 64"));
  EXPECT_THAT(aio(R"("overlap_events": 1)"), HasSubstr("expected true or false"));
  EXPECT_THAT(aio(R"("quue_depth": 1)"), HasSubstr("did you mean \"queue_depth\"?"));
}

TEST(Aio, DirectStorageIsAnswered) {
  const Config config = parse(R"({"aio": {"use_gds": true}})");
  EXPECT_THAT(config.warnings, Contains(AllOf(HasSubstr("aio.use_gds: taken as false"), HasSubstr("pinned host memory"))));
  EXPECT_EQ(row(config, "aio.use_gds").value, "false");
  EXPECT_THAT(parse(R"({"aio": {"use_gds": false}})").warnings, ::testing::Not(Contains(HasSubstr("aio"))));
}

}  // namespace
}  // namespace spillway
