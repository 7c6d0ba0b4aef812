// Files that people and programs read after a run, or during it.
#pragma once

#include <string>
#include <string_view>

namespace spillway {

// A file that appears whole or not at all: written as `path`.partial and renamed by commit(). Without a commit
// (an exception, say) the partial file is removed and whatever was at `path` stays. A symbolic link is
// followed; something that is no regular file (/dev/null, a pipe) is written through directly.
class WholeFile {
 public:
  // Throws IoError naming the path and the system's reason, as every member does.
  explicit WholeFile(const std::string& path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void append(std::string_view text);
  void commit();  // once, at the end

 private:
  std::string path_;     // as given, for error texts
  std::string target_;   // links resolved
  std::string written_;  // the partial file, or target_ if it is written directly
  int fd_ = -1;
};

// A file of lines that is valid after every call: a line is there whole or not at all.
class LineFile {
 public:
  enum class Existing { emptied, kept };
  explicit LineFile(const std::string& path, Existing existing = Existing::emptied);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // Hands `line` and a newline to the system in one write. If that fails half-way, the half is taken back
  // before IoError is thrown.
  void append(std::string line);

 private:
  std::string path_;
  int fd_ = -1;
};

// WholeFile in one call.
void write_whole_file(const std::string& path, std::string_view text);

}  // namespace spillway
