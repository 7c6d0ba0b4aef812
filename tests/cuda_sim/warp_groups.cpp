#include "cuda_sim/warp_groups.h"

#include <sys/mman.h>

#include <cstring>

#include "cuda_sim/sanitizers.h"
#include "cuda_sim/violation.h"

namespace cuda_sim {

namespace {

bool is_open(const WarpGroup& group) { return group.arrived != 0; }
bool is_free(const WarpGroup& group) { return group.arrived == 0 && group.readers == 0; }

void check_agreement(const WarpGroup& group, unsigned lane, unsigned mask, std::size_t bytes, const char* operation, Site site) {
  if (group.mask != mask) {
    violation("lane %u is in %s with mask %08x at %s:%d, but others wait for it in %s with mask %08x at %s:%d", lane, operation, mask,
              site.file, site.line, group.operation, group.mask, group.site.file, group.site.line);
  }
  if (group.bytes != bytes || std::strcmp(group.operation, operation) != 0) {
    violation("lane %u is in %s of %zu bytes at %s:%d, but others of its warp are in %s of %zu bytes at %s:%d", lane, operation, bytes,
              site.file, site.line, group.operation, group.bytes, group.site.file, group.site.line);
  }
}

}  // namespace

// Mapped, since allocations of other kinds are ThreadSanitizer's business; zero, which is free.
WarpGroups::WarpGroups() {
  void* const memory = mmap(nullptr, sizeof(WarpGroup) * kWarps * kGroupsPerWarp, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) violation("no memory for the exchange between lanes");
  groups_ = static_cast<WarpGroup*>(memory);
}

WarpGroups::~WarpGroups() { munmap(groups_, sizeof(WarpGroup) * kWarps * kGroupsPerWarp); }

WarpGroup& WarpGroups::join(unsigned warp, unsigned lane, unsigned mask, std::size_t bytes, const char* operation, Site site) {
  WarpGroup* const groups = groups_ + warp * kGroupsPerWarp;
  WarpGroup* free = nullptr;
  for (WarpGroup* group = groups; group != groups + kGroupsPerWarp; ++group) {
    // Lanes that wait for this one in a later exchange do no harm, unless this exchange needs one of them.
    if (is_open(*group) && (group->mask >> lane & 1u) != 0 && (group->mask == mask || (group->arrived & mask) != 0)) {
      check_agreement(*group, lane, mask, bytes, operation, site);
      group->arrived |= 1u << lane;
      return *group;
    }
    if (is_free(*group)) {
      if (free == nullptr) free = group;
      if (group->bytes == 0) break;  // never used, and so are all behind it
    }
  }
  if (free == nullptr) violation("%s:%d: more exchanges at once than a warp has lanes", site.file, site.line);
  free->mask = mask;
  free->arrived = 1u << lane;
  free->operation = operation;
  free->site = site;
  free->bytes = bytes;
  if (mask != 0xffffffffu) std::memset(free->values, 0xff, sizeof(free->values));
  return *free;
}

const WarpGroup* WarpGroups::expecting(unsigned warp, unsigned lane) const {
  const WarpGroup* const groups = groups_ + warp * kGroupsPerWarp;
  for (const WarpGroup* group = groups; group != groups + kGroupsPerWarp && group->bytes != 0; ++group) {
    if (is_open(*group) && (group->mask >> lane & 1u) != 0) return group;
  }
  return nullptr;
}

}  // namespace cuda_sim
