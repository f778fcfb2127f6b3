"""What every room uses: errors, validated values, files, progress, statistics, the machine."""
