#!/usr/bin/env python3
"""Attacks on the program, as many as one likes.

    scripts/campaign.py kills   [COUNT] [--seed N]   kills runs at random moments and resumes them
    scripts/campaign.py stops   [COUNT] [--seed N]   stops commands by signals, and runs whose lock file is removed
    scripts/campaign.py exits   [COUNT] [--seed N]   gives commands the causes of the documented exit codes
    scripts/campaign.py mutants [COUNT] [--seed N]   damages files that wgpt reads, makes them huge or links; --family for one kind
    scripts/campaign.py faults  [COUNT] [--seed N]   fails a software Vulkan at some allocations and submissions
    scripts/campaign.py power   [COUNT] [--seed N]   cuts the power while wgpt writes (needs strace)
    scripts/campaign.py soak    [SECONDS] [--device] trains for a long time, and measures memory, open files and the disk
    scripts/campaign.py mistakes [COUNT] [--seed N]  makes mistakes in the sources that the tests have to notice

COUNT `all` of faults is each allocation and each submission of a run. --program names the program (default:
target/release/wgpt, or that of $CARGO_TARGET_DIR). The seed of the day is printed. All files are in the folder
that is named, with a home folder, and a file in it that changes without being asked for is a finding. The exit
code is 1 if anything was found; then the folder stays.
"""

import argparse
import datetime
import importlib
import os
import shutil
import sys
import time

from campaigns.campaign import Campaign


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=["kills", "stops", "exits", "mutants", "faults", "power", "soak", "mistakes"])
    parser.add_argument("count", nargs="?", type=lambda text: None if text == "all" else int(text), default=100)
    parser.add_argument("--family", help="of mutants, faults and stops: the only family or kind, as the end names it")
    parser.add_argument("--jobs", type=int, default=1, help="of faults: how many runs at once; most of them wait")
    parser.add_argument("--device", default="cpu", help="of soak: cpu, or a Vulkan adapter like vulkan:0")
    parser.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")))
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--program", default=f"{target}/release/wgpt")
    args = parser.parse_args()
    if args.count is None and args.campaign != "faults":
        parser.error("only faults can be all")
    campaign = Campaign(os.path.abspath(args.program), args)
    print(f"seed {args.seed}, in {campaign.folder}")
    begin = time.monotonic()
    importlib.import_module(f"campaigns.{args.campaign}").attack(campaign, args.count)
    campaign.check_bystanders()
    print(f"\n{args.campaign}: {len(campaign.found)} findings in {time.monotonic() - begin:.0f} s, seed {args.seed}")
    if not campaign.found:
        shutil.rmtree(campaign.folder)
    sys.exit(bool(campaign.found))


if __name__ == "__main__":
    main()
