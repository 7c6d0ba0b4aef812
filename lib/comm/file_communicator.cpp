#include "comm/file_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "spillway/device.h"
#include "spillway/error.h"

namespace spillway::comm {

namespace {

constexpr std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// Empty parts may come with a null buffer.
void copy(std::byte* to, std::int64_t to_offset, const std::byte* from, std::int64_t from_offset, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to + to_offset, from + from_offset, static_cast<std::size_t>(bytes));
}

}  // namespace

FileCommunicator::FileCommunicator(const FileRanks& world, const Segment& segment, int rank, int ranks, std::int64_t staged_bytes)
    : world_(world), segment_(segment), channel_(world.file.map(segment.begin, segment.bytes), rank, ranks, staged_bytes, world.watchdog) {}

FileCommunicator::~FileCommunicator() {
  if (channel_.leave()) world_.file.release(segment_.begin, segment_.bytes);
}

std::unique_ptr<Communicator> FileCommunicator::split(int color) {
  std::vector<int> colors(index(size()));
  exchange(std::as_bytes(std::span(&color, 1)), std::as_writable_bytes(std::span(colors)));
  const auto members_before = [&](int rank) { return static_cast<int>(std::count(colors.begin(), colors.begin() + rank, color)); };
  const int ranks = members_before(size());
  const std::int64_t bytes = whole_pages(SharedChannel::bytes_needed(ranks, world_.staged_bytes));

  // The first member of each group takes memory for it, and tells the others where, or what is wrong.
  struct Taken {
    std::int64_t begin;
    std::int64_t error;
  };
  Taken mine{0, 0};
  const int first = static_cast<int>(std::find(colors.begin(), colors.end(), color) - colors.begin());
  if (is_me(first)) {
    mine.begin = world_.end.fetch_add(bytes, std::memory_order_relaxed);
    mine.error = world_.file.reserve(mine.begin, bytes);
  }
  std::vector<Taken> taken(index(size()));
  exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(taken)));
  const Taken& ours = taken[index(first)];
  if (ours.error != 0) world_.file.refuse(bytes, static_cast<int>(ours.error));
  return std::make_unique<FileCommunicator>(world_, Segment{ours.begin, bytes}, members_before(rank()), ranks, world_.staged_bytes);
}

void FileCommunicator::all_gather(Stream& stream, std::byte* buffer, std::span<const Part> parts) {
  assert(parts.size() == index(size()));
  stream.call([this, buffer, parts] {
    const Part& mine = parts[index(rank())];
    transfer({Collective::all_gather, buffer, {&mine, 1}}, buffer, parts);
    sent_bytes_.fetch_add(mine.bytes * (size() - 1), std::memory_order_relaxed);
  });
}

void FileCommunicator::all_to_all(Stream& stream, const std::byte* send, std::span<const Part> send_parts, std::byte* receive,
                                  std::span<const Part> receive_parts) {
  assert(send_parts.size() == index(size()) && receive_parts.size() == send_parts.size());
  stream.call([this, send, send_parts, receive, receive_parts] {
    const Part &from = send_parts[index(rank())], &to = receive_parts[index(rank())];
    assert(from.bytes == to.bytes);
    copy(receive, to.offset, send, from.offset, from.bytes);
    transfer({Collective::all_to_all, send, send_parts}, receive, receive_parts);
    std::int64_t sent = -from.bytes;
    for (const Part& part : send_parts) sent += part.bytes;
    sent_bytes_.fetch_add(sent, std::memory_order_relaxed);
  });
}

void FileCommunicator::exchange(std::span<const std::byte> mine, std::span<std::byte> all) {
  assert(all.size() == mine.size() * index(size()));
  const std::int64_t bytes = static_cast<std::int64_t>(mine.size());
  std::vector<Part> parts;
  for (int r = 0; r < size(); ++r) parts.push_back({r * bytes, bytes});
  copy(all.data(), rank() * bytes, mine.data(), 0, bytes);
  const Part whole{0, bytes};
  transfer({Collective::exchange, mine.data(), {&whole, 1}}, all.data(), parts);
}

std::vector<std::string> FileCommunicator::exchange(const std::string& mine) {
  const std::int64_t length = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> lengths(index(size()));
  exchange(std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
  std::vector<Part> parts;
  std::int64_t total = 0;
  for (const std::int64_t bytes : lengths) {
    parts.push_back({total, bytes});
    total += bytes;
  }
  std::string texts(static_cast<std::size_t>(total), '\0');
  const Part whole{0, length};
  transfer({Collective::exchange_texts, reinterpret_cast<const std::byte*>(mine.data()), {&whole, 1}}, reinterpret_cast<std::byte*>(texts.data()), parts);
  std::vector<std::string> result;
  for (int r = 0; r < size(); ++r) {
    const Part& part = parts[index(r)];
    result.push_back(is_me(r) ? mine : texts.substr(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.bytes)));
  }
  return result;
}

void FileCommunicator::barrier() {
  const Part nothing{0, 0};
  const std::vector<Part> none(index(size()), nothing);
  transfer({Collective::barrier, nullptr, {&nothing, 1}}, nullptr, none);
}

void FileCommunicator::announce(const Outgoing& outgoing) const {
  SharedChannel::Announcement& mine = channel_.announcement(rank());
  mine = {outgoing.collective, 0};
  const std::span<std::int64_t> sizes = channel_.sizes(rank());
  for (int r = 0; r < size(); ++r) {
    sizes[index(r)] = outgoing.part(r).bytes;
    if (!is_me(r)) mine.largest = std::max(mine.largest, sizes[index(r)]);
  }
}

// The size of the largest part of all, once every rank has announced its own.
std::int64_t FileCommunicator::agree(Collective mine, std::span<const Part> receive_parts) const {
  std::int64_t largest = 0;
  for (int r = 0; r < size(); ++r) {
    const SharedChannel::Announcement& theirs = channel_.announcement(r);
    if (theirs.collective != mine)
      throw CommError(fmt::format("[comm] rank {} of a group of {} is in {} while rank {} is in {}; all ranks have to call the same collectives in the "
                                  "same order",
                                  rank(), size(), name_of(mine), r, name_of(theirs.collective)));
    const std::int64_t sent = channel_.sizes(r)[index(rank())], expected = receive_parts[index(r)].bytes;
    if (sent != expected)
      throw CommError(fmt::format("[comm] {}: rank {} of a group of {} expects {} bytes of rank {}, which sends {}; the parts that ranks give have to agree",
                                  name_of(mine), rank(), size(), expected, r, sent));
    largest = std::max(largest, theirs.largest);
  }
  return largest;
}

void FileCommunicator::transfer(const Outgoing& outgoing, std::byte* receive, std::span<const Part> receive_parts) {
  const bool same = outgoing.same_for_all();
  // Receivers share what a rank stages, unless they all read the same.
  const std::int64_t step = same ? channel_.staged_bytes() : channel_.staged_bytes() / size();
  const auto piece = [step](const Part& part, std::int64_t done) { return std::clamp<std::int64_t>(part.bytes - done, 0, step); };
  const auto stage = [&](int receiver, std::int64_t done) {
    const Part& part = outgoing.part(receiver);
    copy(channel_.staged(rank()), same ? 0 : receiver * step, outgoing.memory, part.offset + done, piece(part, done));
  };

  std::int64_t largest = 0;
  for (std::int64_t done = 0;; done += step) {
    if (done == 0) announce(outgoing);
    if (same) stage(rank(), done);
    else
      for (int r = 0; r < size(); ++r)
        if (!is_me(r)) stage(r, done);
    channel_.meet();
    if (done == 0) largest = agree(outgoing.collective, receive_parts);
    // Each rank begins with another one, so that not all read the same memory.
    for (int distance = 1; distance < size(); ++distance) {
      const int from = (rank() + distance) % size();
      const Part& part = receive_parts[index(from)];
      copy(receive, part.offset + done, channel_.staged(from), same ? 0 : rank() * step, piece(part, done));
    }
    channel_.end_turn();
    if (done + step >= largest) return;
  }
}

}  // namespace spillway::comm
