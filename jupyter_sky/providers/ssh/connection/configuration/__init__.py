"""What `~/.ssh/config` says, in lines that paramiko reads as ssh does."""
