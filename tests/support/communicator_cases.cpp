#include "support/communicator_cases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace spillway::testing {

namespace {

namespace fs = std::filesystem;

constexpr std::byte kUntouched{0xa5};
constexpr std::int64_t kMiB = 1 << 20;

// The bytes that rank `from` holds for rank `to`, eight at a time: any function that tells all of them apart.
std::uint64_t word(int from, int to, std::int64_t index, int salt) {
  std::uint64_t z = static_cast<std::uint64_t>(index) * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(from * 64 + to) * 0xbf58476d1ce4e5b9u +
                    static_cast<std::uint64_t>(salt) * 0x94d049bb133111ebu;
  z ^= z >> 29;
  return z * 0xff51afd7ed558ccdu;
}

// How many bytes rank `from` has for rank `to`.
using Sizes = std::int64_t (*)(int from, int to);

enum class Order { by_rank, reversed, with_gaps };
constexpr Order kOrders[] = {Order::by_rank, Order::reversed, Order::with_gaps};

struct Layout {
  const char* name;
  Sizes bytes;
  std::span<const Order> orders = kOrders;
};

const Layout kLayouts[] = {
    {"even", [](int, int) -> std::int64_t { return 4096; }},
    {"odd", [](int from, int to) -> std::int64_t { return 1 + 37 * from + 11 * to; }},
    {"single bytes", [](int, int) -> std::int64_t { return 1; }},
    {"some empty", [](int from, int to) -> std::int64_t { return (from + to) % 2 == 0 ? 0 : 513; }},
    {"only one not empty", [](int from, int) -> std::int64_t { return from == 0 ? 777 : 0; }},
    {"all empty", [](int, int) -> std::int64_t { return 0; }},
    {"1 MiB + 3", [](int from, int to) -> std::int64_t { return (from + to) % 2 == 1 ? kMiB + 3 : 5; }, std::span(kOrders).subspan(1, 1)},
};

// Parts of the given sizes one after the other in a buffer, in this order of ranks.
std::vector<Part> place(const std::vector<std::int64_t>& bytes, Order order) {
  const std::size_t size = bytes.size();
  std::vector<Part> parts(size);
  std::int64_t offset = order == Order::with_gaps ? 5 : 0;
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t r = order == Order::reversed ? size - 1 - i : i;
    parts[r] = {offset, bytes[r]};
    offset += bytes[r] + (order == Order::with_gaps ? 3 : 0);
  }
  return parts;
}

std::size_t end_of(const std::vector<Part>& parts) {
  std::int64_t end = 7;  // and some bytes that belong to nobody
  for (const Part& part : parts) end = std::max(end, part.offset + part.bytes + 7);
  return static_cast<std::size_t>(end);
}

void fill(std::vector<std::byte>& buffer, const Part& part, int from, int to, int salt) {
  for (std::int64_t i = 0; i < part.bytes; i += 8) {
    const std::uint64_t bytes = word(from, to, i, salt);
    std::memcpy(buffer.data() + part.offset + i, &bytes, static_cast<std::size_t>(std::min<std::int64_t>(8, part.bytes - i)));
  }
}

// What `rank` finds after an all_gather: the parts of all, and nothing else changed.
std::vector<std::byte> gathered(const std::vector<Part>& parts, int salt) {
  std::vector<std::byte> buffer(end_of(parts), kUntouched);
  for (std::size_t r = 0; r < parts.size(); ++r) fill(buffer, parts[r], static_cast<int>(r), 0, salt);
  return buffer;
}

std::vector<std::byte> before_gather(const std::vector<Part>& parts, int rank, int salt) {
  std::vector<std::byte> buffer(end_of(parts), kUntouched);
  fill(buffer, parts[static_cast<std::size_t>(rank)], rank, 0, salt);
  return buffer;
}

template <class Bytes>
std::vector<std::int64_t> sizes_of(int size, Bytes&& bytes) {
  std::vector<std::int64_t> result;
  for (int r = 0; r < size; ++r) result.push_back(bytes(r));
  return result;
}

void all_gather_once(Communicator& comm, const RankUnderTest& rank, const std::vector<Part>& parts, int salt, const char* what) {
  const std::vector<std::byte> before = before_gather(parts, comm.rank(), salt);
  std::byte* const buffer = rank.memory.upload(rank.stream, before);
  comm.all_gather(rank.stream, buffer, parts);
  const auto result = rank.memory.download(rank.stream, buffer, before.size());
  rank.stream.synchronize();
  EXPECT_TRUE(same(result, gathered(parts, salt))) << what << " on rank " << comm.rank() << " of " << comm.size();
}

void gathers_parts_of_every_shape(const RankUnderTest& rank) {
  const auto comm = rank.world.communicator();
  int salt = 0;
  for (const Layout& layout : kLayouts)
    for (const Order order : layout.orders) {
      const auto parts = place(sizes_of(comm->size(), [&](int r) { return layout.bytes(r, r + 1); }), order);
      all_gather_once(*comm, rank, parts, ++salt, layout.name);
    }
}

void all_to_all_once(Communicator& comm, const RankUnderTest& rank, Sizes bytes, Order order, int salt, const char* what) {
  const int size = comm.size(), me = comm.rank();
  // Sent from and received into different layouts: only the sizes have to agree.
  const auto send_parts = place(sizes_of(size, [&](int to) { return bytes(me, to); }), order);
  const auto receive_parts = place(sizes_of(size, [&](int from) { return bytes(from, me); }), order == Order::reversed ? Order::by_rank : Order::reversed);
  std::vector<std::byte> send(end_of(send_parts), kUntouched), receive(end_of(receive_parts), kUntouched), expected = receive;
  for (int r = 0; r < size; ++r) {
    fill(send, send_parts[static_cast<std::size_t>(r)], me, r, salt);
    fill(expected, receive_parts[static_cast<std::size_t>(r)], r, me, salt);
  }
  std::byte* const from = rank.memory.upload(rank.stream, send);
  std::byte* const to = rank.memory.upload(rank.stream, receive);
  comm.all_to_all(rank.stream, from, send_parts, to, receive_parts);
  const auto received = rank.memory.download(rank.stream, to, receive.size()), sent = rank.memory.download(rank.stream, from, send.size());
  rank.stream.synchronize();
  EXPECT_TRUE(same(received, expected)) << what << " on rank " << me << " of " << size;
  EXPECT_TRUE(same(sent, send)) << what << ": the sent buffer changed";
}

void sends_parts_of_every_shape_to_all(const RankUnderTest& rank) {
  const auto comm = rank.world.communicator();
  int salt = 0;
  for (const Layout& layout : kLayouts)
    for (const Order order : layout.orders) all_to_all_once(*comm, rank, layout.bytes, order, ++salt, layout.name);
}

// Collectives queue up in a stream, on buffers of their own, and are looked at only at the end.
void many_in_a_row(Communicator& comm, RankMemory& memory, Stream& stream, int count, int first_salt) {
  std::vector<std::vector<Part>> parts;
  std::vector<std::byte*> buffers;
  std::vector<std::span<const std::byte>> results;
  for (int i = 0; i < count; ++i) {
    parts.push_back(place(sizes_of(comm.size(), [&](int r) { return std::int64_t{1 + 53 * ((i + r) % 7)}; }), kOrders[i % 3]));
    buffers.push_back(memory.upload(stream, before_gather(parts.back(), comm.rank(), first_salt + i)));
  }
  for (int i = 0; i < count; ++i) comm.all_gather(stream, buffers[static_cast<std::size_t>(i)], parts[static_cast<std::size_t>(i)]);
  for (std::size_t i = 0; i < buffers.size(); ++i) results.push_back(memory.download(stream, buffers[i], end_of(parts[i])));
  stream.synchronize();
  int wrong = 0;
  for (int i = 0; i < count; ++i)
    wrong += !same(results[static_cast<std::size_t>(i)], gathered(parts[static_cast<std::size_t>(i)], first_salt + i));
  EXPECT_EQ(wrong, 0) << "of " << count << " on rank " << comm.rank();
}

void two_communicators_work_at_once(const RankUnderTest& rank) {
  const auto one = rank.world.communicator();
  const auto two = rank.world.communicator();
  constexpr int kCount = 100;
  std::thread other([&] { many_in_a_row(*two, rank.memory, rank.other_stream, kCount, 1000); });
  many_in_a_row(*one, rank.memory, rank.stream, kCount, 0);
  other.join();
}

// A host exchange on one communicator while a stream uses another.
void exchanges_beside_a_stream(const RankUnderTest& rank) {
  const auto buffers = rank.world.communicator();
  const auto control = rank.world.communicator();
  std::thread other([&] { many_in_a_row(*buffers, rank.memory, rank.other_stream, 50, 0); });
  int wrong = 0;
  for (int i = 0; i < 50; ++i) {
    const std::int64_t mine = 1000 * i + control->rank();
    std::vector<std::int64_t> all(static_cast<std::size_t>(control->size()));
    control->exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < control->size(); ++r) wrong += all[static_cast<std::size_t>(r)] != 1000 * i + r;
  }
  other.join();
  EXPECT_EQ(wrong, 0);
}

// Work of the stream before a collective makes what it sends; work after it uses what it received.
void keeps_the_order_of_the_stream(const RankUnderTest& rank) {
  const auto comm = rank.world.communicator();
  const auto parts = place(sizes_of(comm->size(), [](int r) { return std::int64_t{1000 + r}; }), Order::reversed);
  constexpr int kRounds = 20;
  const std::size_t bytes = end_of(parts);
  const std::vector<std::byte> zeros(bytes);
  std::byte* const buffer = rank.memory.upload(rank.stream, zeros);
  std::byte* const cleared = rank.memory.upload(rank.stream, zeros);
  int wrong = 0;
  for (int salt = 0; salt < kRounds; ++salt) {
    std::byte* const source = rank.memory.upload(rank.stream, before_gather(parts, comm->rank(), salt));
    rank.stream.copy(buffer, source, static_cast<std::int64_t>(bytes));
    comm->all_gather(rank.stream, buffer, parts);
    const auto result = rank.memory.download(rank.stream, buffer, bytes);
    rank.stream.copy(buffer, cleared, static_cast<std::int64_t>(bytes));
    rank.stream.synchronize();
    wrong += !same(result, gathered(parts, salt));
  }
  EXPECT_EQ(wrong, 0) << "of " << kRounds;
}

void splits_into_groups(const RankUnderTest& rank) {
  const auto comm = rank.world.communicator();
  const int size = comm->size(), me = comm->rank();
  // By parity; all together under a colour below zero; each alone.
  const auto color_of = [](int kind, int r) { return kind == 0 ? r % 2 : kind == 1 ? -7 : r; };
  for (int kind = 0; kind < 3; ++kind) {
    std::vector<int> group;
    for (int r = 0; r < size; ++r)
      if (color_of(kind, r) == color_of(kind, me)) group.push_back(r);
    const auto part = comm->split(color_of(kind, me));
    EXPECT_EQ(part->size(), static_cast<int>(group.size()));
    EXPECT_EQ(part->rank(), static_cast<int>(std::find(group.begin(), group.end(), me) - group.begin()));
    EXPECT_EQ(part->name(), comm->name());
    std::vector<std::string> names;
    for (const int r : group) names.push_back("rank " + std::to_string(r));
    EXPECT_EQ(part->exchange("rank " + std::to_string(me)), names);
    all_gather_once(*part, rank, place(std::vector<std::int64_t>(group.size(), 99), Order::by_rank), kind, "in a group");
    // Groups of groups, and the whole goes on working beside its groups.
    const auto half = part->split(part->rank() < part->size() / 2 ? 0 : 1);
    all_to_all_once(*half, rank, kLayouts[1].bytes, Order::by_rank, kind, "in a group of a group");
    all_gather_once(*comm, rank, place(std::vector<std::int64_t>(static_cast<std::size_t>(size), 9), Order::by_rank), kind, "beside");
  }
}

void exchanges_texts_of_any_length(const RankUnderTest& rank) {
  const auto comm = rank.world.communicator();
  const auto text_of = [](int r, int round) { return std::string(static_cast<std::size_t>((r * 31 + round * 1000) % 5003), static_cast<char>('a' + r)); };
  for (int round = 0; round < 6; ++round) {
    std::vector<std::string> expected;
    for (int r = 0; r < comm->size(); ++r) expected.push_back(text_of(r, round));
    EXPECT_EQ(comm->exchange(text_of(comm->rank(), round)), expected);
  }
  EXPECT_EQ(comm->exchange(""), std::vector<std::string>(static_cast<std::size_t>(comm->size())));
}

void exchanges_memory_of_any_size(const RankUnderTest& rank) {
  const auto comm = rank.world.communicator();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{4097}}) {
    const std::int64_t part_bytes = static_cast<std::int64_t>(bytes);
    std::vector<std::byte> mine(bytes), all(bytes * static_cast<std::size_t>(comm->size())), expected = all;
    fill(mine, {0, part_bytes}, comm->rank(), 0, 0);
    for (int r = 0; r < comm->size(); ++r) fill(expected, {r * part_bytes, part_bytes}, r, 0, 0);
    comm->exchange(mine, all);
    EXPECT_TRUE(all == expected) << bytes << " bytes";
  }
}

// Everybody leaves a file before the barrier, so everybody finds all of them after it.
void nobody_passes_a_barrier_before_all_have_come(const RankUnderTest& rank) {
  const auto comm = rank.world.communicator();
  std::string pattern = (fs::temp_directory_path() / "spillway-barrier-XXXXXX").string();
  const bool made = comm->rank() != 0 || mkdtemp(pattern.data()) != nullptr;
  EXPECT_TRUE(made) << pattern;
  const fs::path folder = comm->exchange(comm->rank() == 0 ? pattern : std::string())[0];
  for (int round = 0; round < 20; ++round) {
    std::ofstream(folder / (std::to_string(round) + "-" + std::to_string(comm->rank()))) << "here";
    comm->barrier();
    int found = 0;
    for (int r = 0; r < comm->size(); ++r) found += fs::exists(folder / (std::to_string(round) + "-" + std::to_string(r)));
    EXPECT_EQ(found, comm->size()) << "round " << round;
  }
  comm->barrier();
  if (comm->rank() == 0) fs::remove_all(folder);
}

void counts_what_it_sends_to_others(const RankUnderTest& rank) {
  const auto comm = rank.world.communicator();
  const int size = comm->size(), me = comm->rank();
  EXPECT_EQ(comm->sent_bytes(), 0);
  all_gather_once(*comm, rank, place(sizes_of(size, [](int r) { return std::int64_t{100 + r}; }), Order::by_rank), 1, "counted");
  std::int64_t expected = std::int64_t{100 + me} * (size - 1);
  EXPECT_EQ(comm->sent_bytes(), expected);
  all_to_all_once(*comm, rank, kLayouts[1].bytes, Order::by_rank, 1, "counted");
  for (int to = 0; to < size; ++to)
    if (to != me) expected += kLayouts[1].bytes(me, to);
  EXPECT_EQ(comm->sent_bytes(), expected);
  // Control and other communicators do not count.
  comm->barrier();
  comm->exchange("text");
  const auto other = comm->split(0);
  all_gather_once(*other, rank, place(std::vector<std::int64_t>(static_cast<std::size_t>(size), 5), Order::by_rank), 1, "not counted");
  EXPECT_EQ(comm->sent_bytes(), expected);
}

void knows_who_is_where(const RankUnderTest& rank) {
  World& world = rank.world;
  const auto comm = world.communicator();
  EXPECT_EQ(comm->rank(), world.rank());
  EXPECT_EQ(comm->size(), world.size());
  // The tests run on one machine.
  EXPECT_EQ(world.local_rank(), world.rank());
  EXPECT_EQ(world.local_size(), world.size());
  EXPECT_FALSE(world.host().empty());
  EXPECT_EQ(comm->exchange(world.host()), std::vector<std::string>(static_cast<std::size_t>(world.size()), world.host()));
  world.note_step(1);
  world.note_operation("test", "nothing");
  EXPECT_NO_THROW(world.check());
}

constexpr CommunicatorCase kCases[] = {
    {"KnowsWhoIsWhere", knows_who_is_where},
    {"GathersPartsOfEveryShape", gathers_parts_of_every_shape},
    {"SendsPartsOfEveryShapeToAll", sends_parts_of_every_shape_to_all},
    {"TwoCommunicatorsWorkAtOnce", two_communicators_work_at_once},
    {"ExchangesBesideAStream", exchanges_beside_a_stream},
    {"KeepsTheOrderOfTheStream", keeps_the_order_of_the_stream},
    {"SplitsIntoGroups", splits_into_groups},
    {"ExchangesTextsOfAnyLength", exchanges_texts_of_any_length},
    {"ExchangesMemoryOfAnySize", exchanges_memory_of_any_size},
    {"NobodyPassesABarrierBeforeAllHaveCome", nobody_passes_a_barrier_before_all_have_come},
    {"CountsWhatItSendsToOthers", counts_what_it_sends_to_others},
};

}  // namespace

std::span<const CommunicatorCase> communicator_cases() { return kCases; }

}  // namespace spillway::testing
