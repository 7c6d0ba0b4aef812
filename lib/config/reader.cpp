#include "config/reader.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "base/text.h"
#include "config/key_table.h"

namespace spillway::config {

namespace {

std::string join(std::string_view section, std::string_view name) {
  return section.empty() ? std::string(name) : fmt::format("{}.{}", section, name);
}

bool is_comment(std::string_view name) { return name.starts_with('_') || name.starts_with("//"); }

bool is_automatic(const Value& value) { return value.string() != nullptr && *value.string() == "auto"; }

// A value that leaves a feature off, however it is spelled.
bool is_off(const Value& value, std::string_view default_value) {
  if (const Object* object = value.object()) {
    const Value* enabled = find(*object, "enabled");
    return object->empty() || (enabled != nullptr && is_off(*enabled, "false"));
  }
  const std::string json = to_json(value);
  if (json == default_value || json == "null") return true;
  return default_value != "true" && (json == "false" || json == "0" || json == "0.0");
}

class Reader {
 public:
  Reader(Settings& settings, Provenance& provenance, Problems& problems)
      : settings_(settings), provenance_(provenance), problems_(problems) {}

  void read_section(const Object& object, std::string_view section) {
    // A type that is not supported has parameters that nobody here knows: one error is enough.
    const std::size_t errors_before = problems_.error_count();
    for (const Member& member : object) {
      if (member.key == "type") read_member(object, member, section);
    }
    if (problems_.error_count() > errors_before) return;
    for (const Member& member : object) {
      if (member.key != "type" && !is_comment(member.key)) read_member(object, member, section);
    }
  }

 private:
  void read_member(const Object& object, const Member& member, std::string_view section) {
    const Key* key = find_key(section, member.key);
    if (key == nullptr) {
      problems_.error(join(section, member.key), member.line, unknown_key(object, member.key, section));
      return;
    }
    if (const Given* other = provenance_.find(key->path)) {
      problems_.error(join(section, member.key), member.line,
                      fmt::format("names the same setting as {} on line {}; keep one of them", key->path, other->line));
      return;
    }
    const auto source = member.value.is_null()         ? KeyReport::Source::default_value
                        : is_automatic(member.value) ? KeyReport::Source::automatic
                                                     : KeyReport::Source::file;
    provenance_.record(key->path, {.source = source, .line = member.line, .value = to_json(member.value)});
    if (source == KeyReport::Source::file) read_value(*key, member);
  }

  void read_value(const Key& key, const Member& member) {
    const Place place{.path = key.path, .line = member.line, .problems = problems_};
    switch (key.effect) {
      case Effect::section: return read_subsection(key, member);
      case Effect::used: return read_field(key.bind(settings_), key.range, member.value, place);
      case Effect::no_effect: return check_kind(key.kind, member.value, place);
      case Effect::refused:
        if (is_off(member.value, key.default_value)) return;
        problems_.error(key.path, member.line, fmt::format("{} cannot be used: {}", describe(member.value), key.note));
    }
  }

  void read_subsection(const Key& key, const Member& member) {
    if (const Object* object = member.value.object()) return read_section(*object, key.path);
    const bool* legacy = std::get_if<bool>(&member.value.data);
    if (key.path == "zero_optimization" && legacy != nullptr) {
      settings_.config.zero_stage = *legacy ? 1 : 0;
      problems_.warning(key.path, member.line, fmt::format("{} is the old spelling of {{\"stage\": {}}}", *legacy,
                                                           settings_.config.zero_stage));
      return;
    }
    problems_.error(key.path, member.line, fmt::format("expected an object, {{ ... }}, found {}",
                                                       describe(member.value)));
  }

  // For reports and messages; long objects are of no use in either.
  static std::string describe(const Value& value) { return value.object() != nullptr ? "{...}" : to_json(value); }

  static void check_kind(Kind kind, const Value& value, const Place& place) {
    switch (kind) {
      case Kind::boolean: read_boolean(value, place); return;
      case Kind::number: read_number(value, place); return;
      case Kind::string:
        if (value.string() == nullptr) {
          place.problems.error(place.path, place.line, fmt::format("expected a string, found {}", describe(value)));
        }
        return;
      case Kind::any: return;
    }
  }

  static std::string unknown_key(const Object& object, std::string_view name, std::string_view section) {
    std::vector<std::string_view> candidates = key_names(section);
    std::erase_if(candidates, [&](std::string_view candidate) { return find(object, candidate) != nullptr; });
    std::string text = "unknown key" + did_you_mean(name, candidates);
    for (const Key& key : key_table()) {
      if (key.section() == section || (key.name() != name && key.alias != name)) continue;
      text += key.section().empty() ? "; a key of this name belongs at the top level"
                                    : fmt::format("; a key of this name belongs in {}", key.section());
      break;
    }
    return text;
  }

  Settings& settings_;
  Provenance& provenance_;
  Problems& problems_;
};

}  // namespace

void read_document(const Object& document, Settings& settings, Provenance& provenance, Problems& problems) {
  Reader(settings, provenance, problems).read_section(document, "");
}

}  // namespace spillway::config
