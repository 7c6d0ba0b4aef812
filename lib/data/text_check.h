// Tells text from files that were meant for something else, so that a wrong --data is refused and not
// learned from.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace spillway {

// Empty if `bytes`, the whole content of a file, can be byte text. Otherwise what it looks like and what to
// do about it, as the end of a sentence that begins with the file's name. Looks at the first 64 KiB only.
std::string why_not_text(std::span<const std::byte> bytes);

}  // namespace spillway
