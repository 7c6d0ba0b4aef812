// What the operating system says about memory, against memory that the test itself takes.
#include "memory/process_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "support/sanitizers.h"

namespace spillway {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kTaken = 64 * kMiB;
// What else the process may touch or give back meanwhile; sanitizers keep shadow memory of what is touched.
constexpr std::int64_t kSlack = testing::kSanitized ? 6 * kTaken : 4 * kMiB;

class Pages {
 public:
  Pages() : data_(static_cast<char*>(mmap(nullptr, kTaken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { munmap(data_, kTaken); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  bool valid() const { return data_ != MAP_FAILED; }
  void touch() {
    for (std::int64_t at = 0; at < kTaken; at += sysconf(_SC_PAGESIZE)) data_[at] = 1;
  }

 private:
  char* data_;
};

TEST(ProcessMemory, ResidentBytesFollowThePagesTouched) {
  const std::int64_t before = resident_bytes();
  ASSERT_GT(before, 0);
  {
    Pages pages;
    ASSERT_TRUE(pages.valid());
    EXPECT_LT(resident_bytes() - before, kSlack) << "reserved pages are not resident";
    pages.touch();
    EXPECT_GE(resident_bytes() - before, kTaken - 4 * kMiB);
    EXPECT_LE(resident_bytes() - before, kTaken + kSlack);
  }
  EXPECT_LT(resident_bytes() - before, kSlack) << "pages given back are not";
}

TEST(ProcessMemory, ThePeakCanBeginAnew) {
  {
    Pages pages;
    ASSERT_TRUE(pages.valid());
    pages.touch();
  }
  const std::int64_t before = peak_resident_bytes();
  if (restart_peak_resident()) {
    EXPECT_LE(peak_resident_bytes(), resident_bytes() + kSlack);
  } else {
    EXPECT_GE(peak_resident_bytes(), before);
  }
}

TEST(ProcessMemory, ThePeakStays) {
  {
    Pages pages;
    ASSERT_TRUE(pages.valid());
    pages.touch();
    EXPECT_GE(peak_resident_bytes(), resident_bytes() - kMiB);
  }
  EXPECT_GE(peak_resident_bytes(), resident_bytes() + kTaken - kSlack);
}

TEST(ProcessMemory, AvailableIsLessThanTheMachineHas) {
  const std::int64_t installed = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  EXPECT_GT(available_memory(), 0);
  EXPECT_LT(available_memory(), installed);
}

}  // namespace
}  // namespace spillway
