// Plans, builds and writes; what the tracer does with threads isn't needed here, as there is only one.
#include "tests/arch/region/patcher.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "arch/x86_64/region.hpp"
#include "daemon/symbols/code_flow.hpp"

namespace probed::test {
namespace {

constexpr std::uint64_t kNear = 1u << 30;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "patcher: %s\n", why.c_str());
  std::abort();
}

std::shared_ptr<const arch::CodeFlow> read_flow(const std::string& path) {
  const auto open = [&path] { return UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)); };
  auto image = elf::Image::from_fd(open(), path);
  if (!image) give_up(image.error().message);
  const auto module = symbols::Module::from_headers(*image, path);
  const bool loaded =
      module->load({[&]() -> std::optional<elf::Image> { return std::move(elf::Image::from_fd(open(), path)).value(); },
                    [](const std::string&) { return UniqueFd(); },
                    {},
                    {}});
  auto flow = loaded ? symbols::read_code_flow(*module, *image) : nullptr;
  if (!flow) give_up(path + " can't be analysed");
  return flow;
}

// Where there is room for the rig, which makes one reservation of twice this at most.
std::uint64_t find_room(std::uint64_t near) {
  constexpr std::size_t kSize = 2 * Rig::kCodeSize;
  for (std::uint64_t at = near - kNear; at < near; at += kSize) {
    void* const p =
        ::mmap(reinterpret_cast<void*>(at), kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED) continue;
    ::munmap(p, kSize);
    return at;
  }
  give_up("no room near the library");
}

}  // namespace

Patcher::Patcher(const std::string& path, std::uint64_t bias) : bias_(bias), flow_(read_flow(path)) {
  RigOptions options;
  options.code = find_room((bias + flow_->functions().front().range.begin) & ~0xffffull);
  rig_ = std::make_unique<Rig>(options);
  constexpr std::size_t kRoom = Rig::kCodeSize - (64 << 10);
  next_ = rig_->place(std::vector<std::uint8_t>(kRoom, 0xcc));
  end_ = next_ + kRoom;
  plan_ = Rig::plan({"a=%di:u64 b=%ax:u64 c=%sp:u64", ""});
  rig_->enable(0, plan_, arch::channel::kRecord);
  const std::uint64_t begin = flow_->functions().front().range.begin & ~0xfffull;
  const std::uint64_t end = flow_->functions().back().range.end;
  if (::mprotect(reinterpret_cast<void*>(bias + begin), end - begin, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
    give_up("mprotect");
}

std::uint64_t Patcher::hits() { return rig_->channel().counts(0).hits(); }

PatchCounts Patcher::patch(unsigned seed, unsigned every, unsigned most) {
  std::mt19937 random(seed);
  PatchCounts counts;
  std::vector<std::uint64_t> sites;
  for (const arch::FunctionFacts& function : flow_->functions())
    for (std::uint64_t at = function.range.begin; at < function.range.end; ++at)
      if (flow_->is_instruction(at) && random() % every == 0) sites.push_back(at);
  std::ranges::shuffle(sites, random);
  for (const std::uint64_t site : sites) {
    if (counts.near + counts.island >= most || end_ - next_ < 2 * arch::kMaxDetourSize) break;
    if (!try_site(site, counts)) ++counts.refused;
  }
  apply();
  return counts;
}

bool Patcher::try_site(std::uint64_t site, PatchCounts& counts) {
  arch::RegionRequest request;
  const auto taken = taken_near(site);
  request.site = site;
  request.taken = taken;
  const arch::RegionResult result = arch::x86_64::plan_region(*flow_, request);
  if (!result) return false;
  const arch::RegionPlan& plan = result.plan;
  const std::uint64_t detour = detour_for(plan.region);
  if (detour == 0) return false;
  const auto jump_from = [&](std::uint64_t at, std::uint64_t to) {
    write(at, arch::x86_64::detour_jump(bias_ + at, to));
  };
  if (plan.form == arch::JumpForm::near) {
    jump_from(site, detour);
  } else {
    jump_from(plan.island, detour);
    write(site, arch::x86_64::short_jump(site, plan.island));
  }
  ++(plan.form == arch::JumpForm::near ? counts.near : counts.island);
  take(plan);
  return true;
}

// 0: it can't be built.
std::uint64_t Patcher::detour_for(const arch::Displaced& code) {
  std::vector<arch::Insn> insns(code.all().begin(), code.all().end());
  for (arch::Insn& insn : insns)
    if (insn.target) *insn.target += bias_;
  const arch::CapturedProbe probe{0, &plan_.capture};
  arch::DetourRequest request;
  request.site = bias_ + code.address;
  request.region = flow_->bytes(code.address, code.length);
  request.insns = insns;
  request.address = next_;
  request.probes = {&probe, 1};
  arch::Detour detour;
  if (!arch::x86_64::build_detour(request, rig_->runtime(), detour)) return 0;
  std::memcpy(reinterpret_cast<void*>(next_), detour.code.data(), detour.code.size());
  const std::uint64_t at = next_;
  next_ = (next_ + detour.code.size() + 15) & ~15ull;
  return at;
}

void Patcher::write(std::uint64_t address, std::span<const std::uint8_t> bytes) {
  writes_.push_back({address, {bytes.begin(), bytes.end()}});
}

// All at once, and without a function that might be among what is written to.
void Patcher::apply() {
  for (const Write& w : writes_) {
    auto* const to = reinterpret_cast<volatile std::uint8_t*>(bias_ + w.address);
    for (std::size_t i = 0; i < w.bytes.size(); ++i) to[i] = w.bytes[i];
  }
}

std::vector<arch::CodeRange> Patcher::taken_near(std::uint64_t site) const {
  const auto first = std::ranges::lower_bound(taken_, site - arch::kRegionReach, {}, &arch::CodeRange::begin);
  const auto last = std::ranges::upper_bound(taken_, site + arch::kRegionReach, {}, &arch::CodeRange::begin);
  return {first, last};
}

void Patcher::take(const arch::RegionPlan& plan) {
  for (const arch::CodeRange& range : plan.written())
    if (range.begin != range.end)
      taken_.insert(std::ranges::upper_bound(taken_, range.begin, {}, &arch::CodeRange::begin), range);
}

}  // namespace probed::test
