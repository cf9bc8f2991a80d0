#include "training/flags/run_metadata.h"

#include "dataloader/quote.h"
#include "dataloader/utf8.h"
#include "training/flags/flags.h"

namespace gated {

RunMetadata run_metadata(Config& config, const Data& data) {
  RunMetadata metadata;
  for (const Flag& f : list_flags(config))
    if (f.shapes_the_result()) metadata["flag" + f.name] = f.get();
  metadata["data"] = data.train->description();
  metadata["hash--data"] = data.train->content_hash();
  metadata["hash--val-data"] = data.val ? data.val->content_hash() : "none";
  return metadata;
}

void require_utf8(const RunMetadata& metadata) {
  for (const auto& [key, value] : metadata)
    for (std::string_view rest = value; !rest.empty();) {
      const size_t length = utf8_front(rest).length;
      require(length > 0, "%s=%s: is not UTF-8, as what a checkpoint holds must be: rename it, or leave --out out",
              key.starts_with("flag") ? key.c_str() + 4 : key.c_str(), quote(value).c_str());
      rest.remove_prefix(length);
    }
}

// A checkpoint holds fp32 masters, whatever the precision was.
static void leave_out_precision(RunMetadata& metadata) {
  for (const char* flag : {"flag--precision", "flag--mma"}) metadata.erase(flag);
}

RunMetadata needed_by_evaluation(RunMetadata metadata) {
  leave_out_precision(metadata);
  Config defaults;
  for (const Flag& f : list_flags(defaults))
    if (f.kind == Flag::Kind::training || f.name == "--context") metadata.erase("flag" + f.name);
  return metadata;
}

size_t trained_context(const RunMetadata& metadata) {
  Config config;
  for (const Flag& f : list_flags(config))
    if (f.name == "--context" && metadata.contains("flag--context")) f.set(metadata.at("flag--context"));
  return config.model.context;
}

std::vector<std::string> changed_flags(const RunMetadata& metadata) {
  std::vector<std::string> changed;
  Config defaults;
  for (const Flag& f : list_flags(defaults)) {
    const auto found = metadata.find("flag" + f.name);
    if (found != metadata.end() && found->second != f.get()) changed.push_back(f.name + "=" + found->second);
  }
  return changed;
}

// Flags that older checkpoints name otherwise: --gate-shared and --gate-input=none are values of --gate now, and
// --dyt-alpha-attn is the second number of --dyt-alpha.
static void rename_old_flags(RunMetadata& then) {
  const auto take = [&](const char* key) {
    const std::string value = then[key];
    then.erase(key);
    return value;
  };
  if (take("flag--gate-shared") == "on") then["flag--gate"] = "shared";
  if (take("flag--gate-input") == "none") then["flag--gate"] = "static";
  const std::string attention_alpha = take("flag--dyt-alpha-attn");
  std::string& alpha = then["flag--dyt-alpha"];
  if (!attention_alpha.empty() && attention_alpha != alpha) alpha += "," + attention_alpha;
  if (alpha.empty()) then.erase("flag--dyt-alpha");
}

std::vector<std::string> flags_of_run(const std::string& path, RunMetadata metadata) {
  rename_old_flags(metadata);
  Config defaults;
  std::set<std::string> known;
  for (const Flag& f : list_flags(defaults)) known.insert("flag" + f.name);
  std::vector<std::string> flags;
  for (const auto& [key, value] : metadata) {
    if (!key.starts_with("flag--")) continue;
    require(known.contains(key), "%s: was made with %s=%s, a flag that this program does not have", path.c_str(),
            quote(key.substr(4)).c_str(), quote(value).c_str());
    flags.push_back(key.substr(4) + "=" + value);
  }
  return flags;
}

// Which key says what the data was. A checkpoint without hashes has its path and its size.
static bool names_data(const std::string& key) {
  return key == "data" || key == "flag--data" || key == "flag--val-data" || key == "flag--val-fraction";
}

// Flags of the learning rate: what counts of them is the rate of every step that is done.
static bool is_of_schedule(const std::string& flag) {
  return std::set<std::string>{"--steps", "--lr", "--min-lr", "--warmup", "--schedule", "--decay"}.contains(flag);
}

// The rates that the flags in it make.
static Schedule schedule_of(const RunMetadata& metadata) {
  Config config;
  for (const Flag& f : list_flags(config))
    if (is_of_schedule(f.name) && metadata.contains("flag" + f.name)) f.set(metadata.at("flag" + f.name));
  config.schedule.steps = config.steps;
  return config.schedule;
}

// What else can be done where a flag differs.
static std::string remedy(const std::string& flag, const std::string& path, const Schedule& then) {
  if (flag == "--precision") return "add --change-precision, ";
  if (!is_of_schedule(flag)) return "";
  if (then.kind == ScheduleKind::wsd)
    return format(
        "keep the rates of the steps that are done (a checkpoint of step %zu or before may go on otherwise), ",
        then.stable_until());
  return format(
      "train the model on with --from=%s in a new --out (with a cosine every rate depends on --steps; a run of "
      "--schedule=wsd can be made longer), ",
      path.c_str());
}

void require_same_run(const std::string& path, RunMetadata then, const RunMetadata& now, bool evaluates) {
  flags_of_run(path, then);  // of flags that are not there nothing could be compared
  rename_old_flags(then);
  // What is compared, in the order of the table of flags: there a flag stands before those that follow from it, as
  // --attention-every does from --mixer.
  std::vector<std::string> flags, hashes;
  Config defaults;
  for (const Flag& f : list_flags(defaults)) {
    const std::string key = "flag" + f.name;
    if (now.contains(key)) flags.push_back(key);
    std::string& value = then[key];
    if (value.empty()) value = f.get();
  }
  for (const auto& [key, value] : now)
    if (!key.starts_with("flag")) (key.starts_with("hash") ? hashes : flags).push_back(key);
  const bool has_hashes = then.contains("hash--data");
  const size_t behind = then.contains("step") ? std::stoull(then.at("step")) : SIZE_MAX;  // steps that are done
  const bool same_rates =
      now.contains("flag--lr") && steps_in_common(schedule_of(then), schedule_of(now), behind) == behind;
  std::string was, is, names, remedies;
  for (const std::string& key : flags) {
    const std::string &value = now.at(key), flag = key.starts_with("flag") ? key.substr(4) : key;
    if (then[key] == value || (has_hashes && names_data(key)) || (same_rates && is_of_schedule(flag))) continue;
    if (key == "flag--vocab" && (then[key] == "0" || value == "0")) continue;  // the data's, and the data is compared
    was += " " + flag + "=" + then[key];
    is += " " + flag + "=" + value;
    names += (names.empty() ? "" : " and ") + flag;
    const std::string more = remedy(flag, path, schedule_of(then));
    if (remedies.find(more) == remedies.npos) remedies += more;
  }
  require(was.empty() || !evaluates,
          "%s: was made with%s, and --evaluate was given%s: leave %s out: the run's own count", path.c_str(),
          was.c_str(), is.c_str(), names.c_str());
  require(was.empty(), "%s: was made with%s, this run has%s: give the same, %sor name another --out", path.c_str(),
          was.c_str(), is.c_str(), remedies.c_str());
  for (const std::string& key : hashes)
    require(!has_hashes || then[key] == now.at(key),
            "%s: was made with other data than %s=%s holds: its hash is %s, expected %s: name the data that the run "
            "began with, or %s",
            path.c_str(), key.c_str() + 4, now.at("flag" + key.substr(4)).c_str(), now.at(key).c_str(),
            then[key].c_str(),
            evaluates ? format("--from=%s in the place of --out", path.c_str()).c_str() : "name another --out");
}

std::optional<Checkpoint> newest_checkpoint(const Config& c, RunMetadata metadata) {
  std::optional<Checkpoint> checkpoint = find_latest(c.out);
  if (c.change_precision) leave_out_precision(metadata);
  // One that has gone on into a decay that this run does not have: the newest from before it.
  if (checkpoint && metadata.contains("flag--lr")) {
    const Schedule then = schedule_of(checkpoint->metadata()), now = schedule_of(metadata);
    const size_t same = steps_in_common(then, now, checkpoint->step());
    const auto all = list_checkpoints(c.out);  // newest first
    if (then.kind == ScheduleKind::wsd && now.kind == then.kind && checkpoint->step() > same &&
        all.rbegin()->first <= same)
      checkpoint = find_latest(c.out, same);
  }
  if (checkpoint) require_same_run(checkpoint->path(), checkpoint->metadata(), metadata, c.evaluate);
  return checkpoint;
}

}  // namespace gated
