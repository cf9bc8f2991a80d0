#include "training/disk.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "training/checkpoint/checkpoint.h"
#include "training/describe.h"

namespace gated {

// When time or a validation saves one nobody knows before: with --keep=0 they are left out.
DiskUse disk_use(const Config& c, size_t checkpoint_bytes) {
  const size_t all = c.save_every.steps ? (c.steps - 1) / c.save_every.steps + 1 : 1;
  const size_t best = c.val_every > 0 || c.measure_every > 0, stable = c.schedule.stable_until() > 0;
  const size_t kept = std::min(c.keep, best || c.save_every.seconds ? c.steps : all);
  DiskUse disk = {checkpoint_bytes, c.keep ? kept + best + stable + 1 : all, 0, SIZE_MAX};
  const size_t there = list_checkpoints(c.out).size();
  disk.more = double(disk.at_once - std::min(disk.at_once, there)) * double(checkpoint_bytes);
  std::error_code error;
  const auto space = std::filesystem::space(c.out, error);
  if (!error) disk.free = space.available;
  return disk;
}

void require_disk(const Config& c, const DiskUse& disk) {
  require(disk.checkpoint <= disk.free,
          "--out=%s: a checkpoint takes %s bytes and %s are free there: make room, or name a folder elsewhere",
          c.out.c_str(), with_commas(disk.checkpoint).c_str(), with_commas(disk.free).c_str());
  if (disk.more > double(disk.free))
    std::fprintf(stderr,
                 "warning: --out=%s: its checkpoints will take %.1f MiB more and %.1f MiB are free there: a save that "
                 "finds no room ends the run; make room, or lower --keep (now %zu)\n",
                 c.out.c_str(), disk.more / 1048576, double(disk.free) / 1048576, c.keep);
}

std::string disk_text(const Config& c, const DiskUse& disk) {
  return format("checkpoints of %s bytes, %zu at once at most%s: %.1f MiB more in %s%s",
                with_commas(disk.checkpoint).c_str(), disk.at_once,
                c.keep ? "" : " and more where a validation saves one", disk.more / 1048576, c.out.c_str(),
                disk.free == SIZE_MAX ? "" : format(", where %.0f MiB are free", double(disk.free) / 1048576).c_str());
}

}  // namespace gated
