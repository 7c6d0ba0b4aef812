#include "config/relaxed_json.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace spillway::config {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_word_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$'; }

bool is_word(char c) { return is_word_start(c) || std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Copies the source token by token. Everything but quotes keeps its length, so lines stay lines.
class Rewriter {
 public:
  explicit Rewriter(std::string_view source) : source_(source) { strict_.text.reserve(source.size()); }

  StrictJson run() {
    if (source_.starts_with(kByteOrderMark)) blank(kByteOrderMark.size());
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (c == '"') {
        copy_string();
      } else if (const std::size_t length = comment_length(); length > 0) {
        blank(length);
      } else if (is_word_start(c)) {
        copy_word();
      } else if (is_word(c) || c == '-' || c == '+' || c == '.') {
        copy_number();
      } else {
        copy_punctuation(c);
      }
    }
    return std::move(strict_);
  }

 private:
  // Spaces for `length` bytes of source; line ends stay.
  void blank(std::size_t length) {
    for (const std::size_t end = at_ + length; at_ < end; ++at_) {
      strict_.text += source_[at_] == '\n' || source_[at_] == '\r' ? source_[at_] : ' ';
    }
  }

  // 0 when no comment starts here. An unclosed one reaches to the end of the text.
  std::size_t comment_length() const {
    const std::string_view rest = source_.substr(at_);
    if (rest.starts_with("#") || rest.starts_with("//")) return std::min(rest.find('\n'), rest.size());
    if (!rest.starts_with("/*")) return 0;
    const std::size_t close = rest.find("*/", 2);
    return close == std::string_view::npos ? rest.size() : close + 2;
  }

  void copy_string() {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != '"' && source_[end] != '\n') end += source_[end] == '\\' ? 2 : 1;
    end = std::min(end + 1, source_.size());
    append(source_.substr(at_, end - at_));
  }

  void copy_word() {
    const std::string_view word = take(is_word);
    if (word == "true" || word == "false" || word == "null") {
      append(word);
      return;
    }
    insert_quote();
    append(word);
    insert_quote();
  }

  // Kept whole so that the e of 5e8 is no word. "-inf" gets quotes as "inf" does.
  void copy_number() {
    const std::string_view number = take([](char c) { return is_word(c) || c == '-' || c == '+' || c == '.'; });
    const bool word = number.size() > 1 && (number[0] == '-' || number[0] == '+') && is_word_start(number[1]);
    if (word) insert_quote();
    append(number);
    if (word) insert_quote();
  }

  void copy_punctuation(char c) {
    if (c == ',' && after_value_) {
      comma_ = strict_.text.size();
    } else if ((c == '}' || c == ']') && comma_ != kNone) {
      strict_.text[comma_] = ' ';
    }
    if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      after_value_ = c == '}' || c == ']';
      if (c != ',' || comma_ != strict_.text.size()) comma_ = kNone;
    }
    strict_.text += c;
    ++at_;
  }

  template <class Predicate>
  std::string_view take(Predicate belongs) const {
    std::size_t end = at_;
    while (end < source_.size() && belongs(source_[end])) ++end;
    return source_.substr(at_, end - at_);
  }

  void append(std::string_view token) {
    strict_.text += token;
    at_ += token.size();
    after_value_ = true;
    comma_ = kNone;
  }

  void insert_quote() {
    strict_.insertions.push_back(strict_.text.size());
    strict_.text += '"';
  }

  std::string_view source_;
  std::size_t at_ = 0;
  StrictJson strict_;
  bool after_value_ = false;    // the latest token ends a value (or is a key)
  std::size_t comma_ = kNone;   // in strict_.text, the comma that followed a value, when it is the latest token
};

}  // namespace

StrictJson to_strict_json(std::string_view source) { return Rewriter(source).run(); }

std::size_t source_offset(const StrictJson& strict, std::size_t offset) {
  const auto before = std::lower_bound(strict.insertions.begin(), strict.insertions.end(), offset);
  return offset - static_cast<std::size_t>(before - strict.insertions.begin());
}

}  // namespace spillway::config
