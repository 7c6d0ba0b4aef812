// Without this the other tests would pass just as well if NEON were not among the instruction sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spillway/optimizer.h"

namespace spillway {
namespace {

TEST(Neon, IsWhatUpdatesUse) {
  EXPECT_THAT(available_isas(), ::testing::ElementsAre("neon", "scalar"));
  EXPECT_EQ(active_isa(), "neon");
}

}  // namespace
}  // namespace spillway
