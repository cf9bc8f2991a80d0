#include "ptx/count.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace ptx {

static bool no_blocks() {
  const char* const wanted = getenv("PTX_COUNT_BLOCKS");
  return wanted && !strcmp(wanted, "0");
}

bool Counter::wanted() {
  static const bool is = getenv("PTX_COUNT") && *getenv("PTX_COUNT");
  return is;
}

static size_t distinct(std::vector<uint64_t>& numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers.size();
}

uint64_t Counter::pieces(const std::vector<uint64_t>& addresses, unsigned bytes, unsigned of) {
  std::vector<uint64_t> touched;
  for (uint64_t a : addresses)
    for (uint64_t piece = a / of; piece <= (a + bytes - 1) / of; piece++) touched.push_back(piece);
  return distinct(touched);
}

uint64_t Counter::wavefronts(const std::vector<uint64_t>& addresses, unsigned bytes) {
  const size_t at_once = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  uint64_t turns = 0;
  std::vector<uint64_t> fetched;
  for (size_t i = 0; i < addresses.size(); i += at_once) {
    std::vector<uint64_t> words;
    for (size_t j = i; j < std::min(i + at_once, addresses.size()); j++)
      for (uint64_t word = addresses[j] / 4; word <= (addresses[j] + bytes - 1) / 4; word++)
        if (std::find(fetched.begin(), fetched.end(), word) == fetched.end()) words.push_back(word);
    distinct(words);
    size_t of_bank[32] = {}, most = 0;
    for (uint64_t word : words) most = std::max(most, ++of_bank[word % 32]);
    turns += most;
    fetched.insert(fetched.end(), words.begin(), words.end());
  }
  return turns;
}

std::vector<uint64_t> Counter::blocks_of(const Kernel& kernel, Extent grid, Extent block, unsigned cluster,
                                         size_t dynamic, const void* parameters) {
  std::string key = kernel.name;
  for (const Extent& e : {grid, block, {unsigned(dynamic)}})
    for (unsigned n : {e.x, e.y, e.z}) key.append(1, ' ').append(std::to_string(n));
  // (What the kernel does not load, such as the padding of a struct, is whatever was on the stack.)
  std::vector<char> arguments(kernel.parameter_bytes);
  for (const Parameter& p : kernel.loaded)
    memcpy(&arguments[p.offset], static_cast<const char*>(parameters) + p.offset, p.bytes);
  for (size_t i = 0; i + 8 <= arguments.size(); i += 8) {
    uint64_t word;
    memcpy(&word, &arguments[i], 8);
    if (word - device_begin < device_bytes) memset(&arguments[i], 1, 8);
  }
  key.append(1, ' ').append(arguments.begin(), arguments.end());
  const auto [found, is_new] = known_.emplace(key, launches_.size());
  if (!is_new) {
    launches_[found->second].times++;
    return {};
  }
  const uint64_t all = uint64_t(grid.x) * grid.y * grid.z / cluster;
  launches_.push_back({kernel.name,
                       kernel.file,
                       std::hash<std::string>()(key),
                       grid,
                       block,
                       all,
                       dynamic,
                       kernel.static_shared,
                       1,
                       0,
                       {}});
  launch_ = &launches_.back();
  std::vector<uint64_t> blocks;
  if (no_blocks()) return {};
  if (all <= 6)
    for (uint64_t i = 0; i < all; i++) blocks.push_back(i);
  else
    blocks = {all / 8, 3 * all / 8, 5 * all / 8, 7 * all / 8, 0, all - 1};
  launch_->sampled = cluster * std::min<uint64_t>(all, all <= 6 ? 6 : 4);
  return blocks;
}

bool Counter::decides_work(const Kernel& kernel) {
  if (no_blocks()) return false;
  const auto is = [&](const char* name) { return kernel.name.find(name) != std::string::npos; };
  return is("router_forward") || (is("dispatch") && !is("gather"));
}

void Counter::begin_block(uint64_t block, uint32_t threads) {
  in_sum_ = launch_->all <= 6 || (block != 0 && block != launch_->all - 1);
  threads_ = threads;
  lines_of_block_.clear(), visits_.clear(), groups_.clear();
  for (auto& sectors : read_) sectors.clear();
}

void Counter::access(const Thread& t, Space space, uint64_t address, unsigned bytes, bool write, unsigned line) {
  const uint64_t place = uint64_t(line) << 40 | uint64_t(space) << 36 | uint64_t(t.warp) << 28;
  const uint64_t key = place | visits_[place | t.lane]++;
  Group& group = groups_[key];
  group.addresses.push_back(address);
  group.bytes = bytes, group.write = write, group.rank = t.rank;
  if (group.addresses.size() == std::min(32u, threads_ - 32 * t.warp)) {
    finish(line, space, group);
    groups_.erase(key);
  }
}

void Counter::finish(unsigned line, Space space, const Group& group) {
  Line& l = lines_of_block_[{line, space}];
  l.executions++, l.write = group.write, l.bytes += group.addresses.size() * group.bytes;
  if (space == Space::global) {
    if (group.write) l.sectors += pieces(group.addresses, group.bytes, 32);
    for (uint64_t a : group.addresses)
      for (uint64_t sector = a / 32; !group.write && sector <= (a + group.bytes - 1) / 32; sector++)
        l.sectors += read_[group.rank].insert(sector).second;
    l.wavefronts += pieces(group.addresses, group.bytes, 128);
  } else {
    l.wavefronts += wavefronts(group.addresses, group.bytes);
  }
  for (uint64_t a : group.addresses) l.first = std::min(l.first, a), l.last = std::max(l.last, a + group.bytes);
}

void Counter::copied(unsigned line, const gated::TmaMatrix& m, int32_t x, int32_t y) {
  Line& l = lines_of_block_[{line, Space::global}];
  l.executions++;
  const uint64_t end = std::min<uint64_t>(uint64_t(x) + gated::wgmma_line, m.length);
  for (uint64_t i = uint64_t(y); i < std::min<uint64_t>(uint64_t(y) + m.box_lines, m.lines) && uint64_t(x) < end; i++) {
    const uint64_t first = m.address + i * m.pitch + uint64_t(x) * sizeof(gated::bf16);
    const uint64_t last = m.address + i * m.pitch + end * sizeof(gated::bf16);
    l.bytes += last - first, l.sectors += (last + 31) / 32 - first / 32;
    l.first = std::min(l.first, first), l.last = std::max(l.last, last);
  }
}

void Counter::warp_op(unsigned line, uint32_t warp) {
  Line& l = lines_of_block_[{line, Space::local}];
  l.executions++, l.first = std::min<uint64_t>(l.first, warp), l.last = std::max<uint64_t>(l.last, warp + 1);
}

void Counter::end_block() {
  for (const auto& [key, group] : groups_) finish(unsigned(key >> 40), Space(key >> 36 & 15), group);
  for (const auto& [key, l] : lines_of_block_) {
    Line& sum = launch_->lines[key];
    sum.first = std::min(sum.first, l.first), sum.last = std::max(sum.last, l.last), sum.write = l.write;
    if (!in_sum_) continue;
    sum.executions += l.executions, sum.bytes += l.bytes, sum.sectors += l.sectors, sum.wavefronts += l.wavefronts;
  }
}

// One launch a line. Of `lines`: where in the C++ file, which memory, read or written, then counts and addresses.
void Counter::write() const {
  std::ofstream out(getenv("PTX_COUNT"));
  for (const Launch& l : launches_) {
    out << "{\"kernel\": \"" << l.kernel << "\", \"file\": \"" << l.file << "\", \"call\": " << l.call;
    for (const auto& [name, e] : {std::pair("grid", l.grid), {"block", l.block}})
      out << ", \"" << name << "\": [" << e.x << ", " << e.y << ", " << e.z << "]";
    out << ", \"dynamic\": " << l.dynamic << ", \"static\": " << l.fixed << ", \"times\": " << l.times
        << ", \"sampled\": " << l.sampled << ", \"lines\": [";
    const char* comma = "";
    for (const auto& [key, line] : l.lines) {
      const char* space = key.second == Space::global ? "global" : key.second == Space::shared ? "shared" : "warp";
      out << comma << "[" << key.first << ", \"" << space << "\", " << (line.write ? 1 : 0) << ", " << line.executions
          << ", " << line.bytes << ", " << line.sectors << ", " << line.wavefronts << ", "
          << (line.last ? line.first : 0) << ", " << line.last << "]";
      comma = ", ";
    }
    out << "]}\n";
  }
}

}  // namespace ptx
