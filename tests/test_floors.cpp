// floors: which folder may include which. train_gpt.cu -> training -> layers -> kernels and dataloader -> core: nothing
// points back up, and no two files include each other. ptx stands beside them: it knows the model of a tensor core, and
// nothing knows it. A floor may have rooms, which stand in an order too.
#include <filesystem>
#include <set>

#include "tests/contents.h"

using namespace gated;

namespace {

namespace fs = std::filesystem;

// What each source of the program includes of the program's own, by path.
std::map<std::string, std::set<std::string>> includes() {
  std::map<std::string, std::set<std::string>> found;
  auto read = [&](const std::string& path) {
    std::set<std::string>& list = found[path];
    for (const auto& line : matches("\n" + contents(path), "\n#include \"([^\"]+)\"")) list.insert(line[1]);
  };
  for (const char* folder : {"core", "kernels", "dataloader", "layers", "training", "ptx"})
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) read(entry.path().generic_string());
  read("train_gpt.cu");
  return found;
}

std::string floor_of(const std::string& path) {
  return path.substr(0, path.find('/'));
}

std::string room_of(const std::string& path) {
  return fs::path(path).parent_path().generic_string();
}

// The rooms of a floor. One may include those that stand before it.
const std::map<std::string, std::vector<std::string>> rooms = {
    {"kernels", {"kernels", "kernels/bf16", "kernels/cpu", "kernels/decode"}},
    {"training",
     {"training/process", "training/ranks", "training/checkpoint", "training/flags", "training/text", "training/models",
      "training/inspect", "training"}}};

}  // namespace

TEST_CASE("floors: nothing includes a file of a floor above", "[floors]") {
  const std::map<std::string, std::set<std::string>> below = {
      {"core", {"core"}},
      {"kernels", {"core", "kernels"}},
      {"dataloader", {"core", "dataloader"}},
      {"layers", {"core", "kernels", "layers"}},
      {"ptx", {"core", "ptx"}},
      {"training", {"core", "kernels", "dataloader", "layers", "training"}},
      {"train_gpt.cu", {"core", "kernels", "dataloader", "layers", "training"}}};
  const auto files = includes();
  REQUIRE(files.size() > 80);
  for (const auto& [path, list] : files)
    for (const std::string& included : list) {
      INFO(path << " includes " << included);
      REQUIRE(below.at(floor_of(path)).count(floor_of(included)) == 1);
      REQUIRE(files.count(included) == 1);
      // What the hardware is said to do is one model: a tensor core's arithmetic, where it looks for its operands, and
      // what is copied there.
      const bool hardware = included == "core/mma_lanes.h" || included == "core/tma.h";
      if (floor_of(path) == "ptx") REQUIRE((floor_of(included) == "ptx" || hardware));
    }
}

TEST_CASE("floors: no room of a floor includes one that stands behind it", "[floors]") {
  std::set<std::string> seen;
  for (const auto& [path, list] : includes()) {
    const auto floor = rooms.find(floor_of(path));
    if (floor == rooms.end()) continue;
    const auto place = [&](const std::string& file) {
      const auto at = std::find(floor->second.begin(), floor->second.end(), room_of(file));
      INFO(file << " lies in no room that is known");
      REQUIRE(at != floor->second.end());
      return at - floor->second.begin();
    };
    seen.insert(room_of(path));
    for (const std::string& included : list) {
      INFO(path << " includes " << included);
      if (floor_of(included) == floor_of(path)) REQUIRE(place(included) <= place(path));
    }
  }
  REQUIRE(seen.size() == 12);
}

TEST_CASE("floors: no file includes itself, by whatever way", "[floors]") {
  const auto files = includes();
  for (const auto& [path, list] : files) {
    std::set<std::string> reached = list;
    for (bool grows = true; grows;) {
      const size_t before = reached.size();
      for (const std::string& file : std::set<std::string>(reached))
        reached.insert(files.at(file).begin(), files.at(file).end());
      grows = reached.size() > before;
    }
    INFO(path);
    REQUIRE(reached.count(path) == 0);
  }
}

// The twins of an operation are its other loops: kernels/cpu, kernels/bf16 and kernels/decode.
TEST_CASE("floors: a file of kernels names its twins in one line, and every tuned loop is named", "[floors]") {
  std::set<std::string> named;
  for (const auto& entry : fs::directory_iterator("kernels")) {
    if (entry.path().extension() != ".cu") continue;
    INFO(entry.path().string());
    const auto lines = matches("\n" + contents(entry.path()), "\n// twins: [^\n]*");
    REQUIRE(lines.size() == 1);
    for (const auto& path : matches(lines[0][0], "kernels/[a-z0-9]+/\\w+\\.(cu|cpp)")) {
      REQUIRE(fs::exists(path[0]));
      named.insert(path[0]);
    }
  }
  for (const auto& entry : fs::directory_iterator("kernels/cpu")) {
    const std::string loops = entry.path().generic_string();
    INFO(loops);
    if (loops.ends_with(".cpp") && !loops.ends_with("_bf16_cpu.cpp")) REQUIRE(named.contains(loops));
  }
}

// The Makefile makes an error of a switch that lacks a choice (-Werror=switch). A default would hide what it lacks.
TEST_CASE("floors: no switch has a default: a new choice that one lacks does not compile", "[floors]") {
  for (const auto& [path, list] : includes()) {
    if (floor_of(path) == "ptx") continue;  // its choices are CUDA's
    INFO(path);
    REQUIRE(matches(contents(path), "\n\\s*default\\s*:.*").empty());
  }
}

// (Other lines of C++ are held to it by clang-format.)
TEST_CASE("floors: no line of Python and no comment of C++ is longer than 120 columns", "[floors]") {
  size_t files = 0;
  for (const char* folder : {"core", "dataloader", "kernels", "layers", "ptx", "scripts", "tests", "training"})
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      const std::string kind = entry.path().extension();
      const bool is_python = kind == ".py";
      if (!is_python && kind != ".h" && kind != ".cpp" && kind != ".cuh" && kind != ".cu") continue;
      files++;
      for (size_t number = 0; const std::string& line : lines_of(contents(entry.path()))) {
        INFO(entry.path().string() << ":" << ++number);
        const size_t text = line.find_first_not_of(' ');
        if (!is_python && (text == line.npos || line.compare(text, 2, "//"))) continue;
        REQUIRE(std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; }) <= 120);  // of UTF-8
      }
    }
  REQUIRE(files > 500);
}

TEST_CASE("floors: a script that names its interpreter can be run", "[floors]") {
  for (const char* folder : {"ptx", "scripts", ".ci"})
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      INFO(entry.path());
      if (entry.is_regular_file() && contents(entry.path()).starts_with("#!"))
        REQUIRE((entry.status().permissions() & fs::perms::owner_exec) != fs::perms::none);
    }
}
