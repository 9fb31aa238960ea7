#!/usr/bin/env python3
"""Attacks on the program, as many as one likes.

    scripts/campaign.py kills   [COUNT] [--seed N]   kills runs at random moments and resumes them
    scripts/campaign.py mutants [COUNT] [--seed N]   damages files that wgpt reads, and reads them
    scripts/campaign.py power   [COUNT] [--seed N]   cuts the power while wgpt writes (needs strace)

--program names the program (default: target/release/wgpt, or that of $CARGO_TARGET_DIR). The seed of the day
is printed. The exit code is 1 if anything was found; what was found stays in the folder that is named.
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
    parser.add_argument("campaign", choices=["kills", "mutants", "power"])
    parser.add_argument("count", nargs="?", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(datetime.date.today().strftime("%Y%m%d")))
    target = os.environ.get("CARGO_TARGET_DIR", "target")
    parser.add_argument("--program", default=f"{target}/release/wgpt")
    args = parser.parse_args()
    campaign = Campaign(os.path.abspath(args.program), args.seed)
    print(f"seed {args.seed}, in {campaign.folder}")
    begin = time.monotonic()
    importlib.import_module(f"campaigns.{args.campaign}").attack(campaign, args.count)
    print(f"\n{args.campaign}: {len(campaign.found)} findings in {time.monotonic() - begin:.0f} s, seed {args.seed}")
    if not campaign.found:
        shutil.rmtree(campaign.folder)
    sys.exit(bool(campaign.found))


if __name__ == "__main__":
    main()
