// From a file to a Config: read, resolve, report.
#include "spillway/config.h"

#include <fmt/format.h>

#include "config/json_value.h"
#include "config/key_table.h"
#include "config/problems.h"
#include "config/reader.h"
#include "config/resolve.h"
#include "config/settings.h"
#include "config/source.h"
#include "spillway/error.h"

namespace spillway {

namespace {

using config::Effect;
using config::Given;
using config::Key;
using config::Object;
using config::Provenance;
using config::Settings;
using config::Value;

// The object at a dotted path, made on the way.
Object& section_at(Object& root, std::string_view path) {
  if (path.empty()) return root;
  const std::size_t dot = path.rfind('.');
  Object& parent = dot == std::string_view::npos ? root : section_at(root, path.substr(0, dot));
  const std::string_view name = dot == std::string_view::npos ? path : path.substr(dot + 1);
  for (config::Member& member : parent) {
    if (member.key == name) return *member.value.object();
  }
  parent.push_back({std::string(name), {Object{}}});
  return *parent.back().value.object();
}

KeyReport report_of(const Key& key, Settings& settings, const Provenance& provenance) {
  const Given* given = provenance.find(key.path);
  KeyReport report{.path = std::string(key.path),
                   .value = std::string(key.default_value),
                   .source = given == nullptr ? KeyReport::Source::default_value : given->source,
                   .note = std::string(key.note)};
  if (key.effect == Effect::used) {
    report.value = to_json(write_field(key.bind(settings)));
  } else {
    if (given != nullptr && given->source == KeyReport::Source::file) report.value = given->value;
    report.note = fmt::format("{}: {}", key.effect == Effect::no_effect ? "no effect" : "not supported", key.note);
  }
  return report;
}

// One row per key; and the values in force, in the order of the table.
void report(Settings& settings, const Provenance& provenance) {
  Object effective;
  Config& config = settings.config;
  for (const Key& key : config::key_table()) {
    if (key.effect == Effect::section) continue;
    config.keys.push_back(report_of(key, settings, provenance));
    if (key.effect != Effect::used) continue;
    Value value = write_field(key.bind(settings));
    if (!value.is_null()) section_at(effective, key.section()).push_back({std::string(key.name()), std::move(value)});
  }
  config.effective_json = to_pretty_json(effective);
}

}  // namespace

Config parse_config(const std::string& text, const std::string& file_name, const ConfigContext& context) {
  if (context.world_size < 1) {
    throw ConfigError(fmt::format("{}: world_size is {}; allowed: at least 1", file_name, context.world_size));
  }
  const Object document = config::parse_object(text, file_name);
  Settings settings;
  Provenance provenance;
  config::Problems problems(file_name);
  read_document(document, settings, provenance, problems);
  problems.throw_errors();
  resolve(context, settings, provenance, problems);
  problems.throw_errors();
  report(settings, provenance);
  settings.config.warnings = problems.take_warnings();
  return std::move(settings.config);
}

Config load_config(const std::string& file, const ConfigContext& context) {
  return parse_config(config::read_text(file, "configuration"), file, context);
}

}  // namespace spillway
